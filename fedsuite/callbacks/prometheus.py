"""Numbers of a running run, served as Prometheus text.

Numbers are counted from the start of the process, as Prometheus expects of counters. No
client is named.
"""

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.kinds import USED, Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PATIENCE_S = 5.0
logger = logging.getLogger(__name__)


@dataclass
class Totals:
    """Totals since the start of the process."""

    rounds: int = 0
    clients: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    rejected: Counter[Kind] = field(default_factory=Counter)
    latest: dict[str, float] = field(default_factory=dict)

    def add(self, report: RoundReport) -> None:
        """Count a round."""
        metrics = report.metrics
        self.rounds += 1
        self.clients += int(metrics["clients_trained"])
        self.bytes_down += int(metrics["bytes_down"])
        self.bytes_up += int(metrics["bytes_up"])
        self.seconds += report.seconds
        for phase in report.phases:
            self.rejected.update(r.kind for r in phase.rejections)
        self.latest |= {
            "round": report.server_round,
            "rounds_planned": report.num_rounds,
            "last_round_seconds": report.seconds,
        }
        if report.evaluate is not None and report.evaluate.num_to_score():
            # A round without an evaluation leaves the last values.
            for name in _OF_CLIENTS:
                self.latest.pop(name, None)
                if name in metrics:
                    self.latest[name] = metrics[name]

    def text(self) -> str:
        """Return the totals in Prometheus' text format."""
        lines = [
            *_metric("rounds_total", "counter", "Rounds done", {"": self.rounds}),
            *_metric(
                "clients_trained_total",
                "counter",
                "Good replies to training",
                {"": self.clients},
            ),
            *_metric(
                "bytes_total",
                "counter",
                "Payload between server and clients",
                {
                    '{direction="down"}': self.bytes_down,
                    '{direction="up"}': self.bytes_up,
                },
            ),
            *_metric(
                "replies_rejected_total",
                "counter",
                "Replies not used, by reason",
                {f'{{reason="{k}"}}': self.rejected[k] for k in Kind if k not in USED},
            ),
            *_metric(
                "round_seconds_total", "counter", "Time in rounds", {"": self.seconds}
            ),
        ]
        for name, words in _GAUGES.items():
            if name in self.latest:
                lines += _metric(name, "gauge", words, {"": self.latest[name]})
        return "\n".join(lines) + "\n"


_GAUGES = {
    "round": "Last round done",
    "rounds_planned": "Rounds of the run",
    "last_round_seconds": "Time that the last round took",
    "accuracy_mean": "Mean accuracy over clients, a fraction, when last evaluated",
    "accuracy_worst10": "Mean accuracy of the worst tenth of clients",
    "accuracy_clients": "Clients with an accuracy, where not all that were asked have one",
    "accuracy_clients_asked": "Clients that were asked for an accuracy",
}
_OF_CLIENTS = tuple(name for name in _GAUGES if name.startswith("accuracy"))


def _metric(name: str, kind: str, words: str, values: dict[str, float]) -> list[str]:
    name = f"fedsuite_{name}"
    lines = [f"# HELP {name} {words}.", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{labels} {value!r}" for labels, value in values.items()]


class _Server(ThreadingTCPServer):
    """Server of one page; not an HTTPServer, which asks the network for names."""

    allow_reuse_address = True
    daemon_threads = True
    page = b""


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: _Server

    def do_GET(self) -> None:
        found = self.path.split("?")[0] == "/metrics"
        page = self.server.page if found else b"see /metrics\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests, because one comes every few seconds."""


class Prometheus(Callback):
    """Serves ``/metrics`` from the start of the rounds to their end.

    Parameters
    ----------
    host
        Address to listen on. The page is not protected: open it to Prometheus' network
        alone.
    port
        Port to listen on; 0 takes any free one.
    """

    def __init__(self, host: str, port: int) -> None:
        if not host:
            raise ConfigError("key metrics-host is empty: name one address to listen on")
        self._address = (host, port)
        self._totals = Totals()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address of the page; empty when the server is not running."""
        if self._server is None:
            return ""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/metrics"

    def on_start(self, state: RunState) -> None:
        """Start the server.

        Raises
        ------
        RunError
            If the address cannot be used.
        """
        try:
            self._server = _Server(self._address, _Handler)
        except (OSError, OverflowError) as error:
            host, port = self._address
            raise RunError(
                f"metrics-port = {port}: cannot listen on {host}:{port} ({error}): choose "
                "another port, or 0 for none"
            ) from error
        self._totals.latest |= {
            "round": state.server_round,
            "rounds_planned": state.num_rounds,
        }
        self._publish(self._server)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()
        logger.info("metrics at %s", self.url)

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Count the round."""
        self._totals.add(report)
        if self._server is not None:
            self._publish(self._server)

    def on_end(self, state: RunState, error: BaseException | None) -> None:
        """Stop the server and free the port."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = self._thread = None

    def _publish(self, server: _Server) -> None:
        # One assignment: a request sees the old page or the new one.
        server.page = self._totals.text().encode()
