"""Numbers of a running run, served to Prometheus.

Numbers are counted from the start of the process, as Prometheus expects of counters. No
client is named.
"""

import logging
import threading
from collections import Counter
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.tasks import SCORES
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.kinds import USED, Kind

logger = logging.getLogger(__name__)

_COUNTERS = {
    "rounds": "Rounds done",
    "clients_trained": "Good replies to training",
    "round_seconds": "Time in rounds",
}
_GAUGES = {
    "round": "Last round done",
    "rounds_planned": "Rounds of the run",
    "last_round_seconds": "Time that the last round took",
}
_OF_CLIENTS = {
    f"{score.column}_{ending}": f"{what} of {score.title} when last evaluated"
    for score in SCORES.values()
    for ending, what in {
        "mean": "Mean over clients",
        "median": "Median over clients",
        "worst10": "Mean over the worst tenth of clients",
        "clients": "Clients that have one, where not all do,",
        "clients_asked": "Clients that were asked, where not all have one,",
    }.items()
}
"""Gauges of all scores; per cent are fractions."""


class Prometheus(Callback, Collector):
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
        self._totals = dict.fromkeys((*_COUNTERS, "down", "up"), 0.0)
        self._rejected: Counter[Kind] = Counter()
        self._latest: dict[str, float] = {}
        self._page = self._families()
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address of the page; empty when the server is not running."""
        if self._server is None:
            return ""
        return f"http://{self._address[0]}:{self._server.server_port}/metrics"

    def on_start(self, state: RunState) -> None:
        """Start the server.

        Raises
        ------
        RunError
            If the address cannot be used.
        """
        self._latest |= {"round": state.server_round, "rounds_planned": state.num_rounds}
        self._page = self._families()
        registry = CollectorRegistry()
        registry.register(self)
        host, port = self._address
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise RunError(
                f"metrics-port = {port}: cannot listen on {host}:{port} ({error}): choose "
                "another port, or 0 for none"
            ) from error
        logger.info("metrics at %s", self.url)

    def collect(self) -> list[Metric]:
        """Return the metrics, in the thread of a request."""
        return self._page

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Count the round."""
        metrics = report.metrics
        self._totals["rounds"] += 1
        self._totals["clients_trained"] += metrics["clients_trained"]
        self._totals["round_seconds"] += report.seconds
        self._totals["down"] += metrics["bytes_down"]
        self._totals["up"] += metrics["bytes_up"]
        for phase in report.phases:
            self._rejected.update(r.kind for r in phase.rejections)
        self._latest |= {
            "round": report.server_round,
            "rounds_planned": report.num_rounds,
            "last_round_seconds": report.seconds,
        }
        evaluated = report.evaluate
        if evaluated is not None and (evaluated.rows or evaluated.num_to_score()):
            # A round without an evaluation leaves the last values.
            for name in _OF_CLIENTS:
                self._latest.pop(name, None)
                if name in metrics:
                    self._latest[name] = metrics[name]
        # One assignment: a request sees the numbers of one round.
        self._page = self._families()

    def on_end(self, state: RunState, error: BaseException | None) -> None:
        """Stop the server and free the port."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = self._thread = None

    def _families(self) -> list[Metric]:
        traffic = CounterMetricFamily(
            "fedsuite_bytes", "Payload between server and clients.", labels=["direction"]
        )
        for direction in ("down", "up"):
            traffic.add_metric([direction], self._totals[direction])
        rejected = CounterMetricFamily(
            "fedsuite_replies_rejected", "Replies not used, by reason.", labels=["reason"]
        )
        for kind in Kind:
            if kind not in USED:
                rejected.add_metric([kind], self._rejected[kind])
        return [
            *(
                CounterMetricFamily(f"fedsuite_{name}", f"{words}.", self._totals[name])
                for name, words in _COUNTERS.items()
            ),
            traffic,
            rejected,
            *(
                GaugeMetricFamily(f"fedsuite_{name}", f"{words}.", self._latest[name])
                for name, words in (_GAUGES | _OF_CLIENTS).items()
                if name in self._latest
            ),
        ]
