"""Clocks that differ: what a site is told, and when."""

import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedsuite.deploy.clocks import clock_trouble, seconds_ahead
from fedsuite.deploy.folders import NodeFolder, init_federation


class Proxy(BaseHTTPRequestHandler):
    """Answers as the reverse proxy does: nothing is here, and it is so late."""

    late = timedelta(0)
    tells = True

    def do_GET(self) -> None:
        self.send_response_only(404)
        if self.tells:
            self.send_header("Date", format_datetime(datetime.now(UTC) - self.late, True))
        self.end_headers()


@pytest.fixture
def at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[float], NodeFolder]]:
    """Return what sets the clock of a server, and gives the folder of its node."""
    server = HTTPServer(("127.0.0.1", 0), Proxy)
    port = server.server_address[1]
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a"], port=1, fleet_port=port)
    keys = tmp_path / "fed" / "superlink"
    secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secured.load_cert_chain(keys / "server.pem", keys / "server.key")
    server.socket = secured.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def made(ahead: float) -> NodeFolder:
        monkeypatch.setattr(Proxy, "late", timedelta(seconds=ahead))
        return NodeFolder.load(tmp_path / "fed" / "nodes" / "a")

    yield made
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        (0, ""),
        (3, ""),
        (-290, ""),
        (310, "s ahead of the"),
        (-400, "s behind the server's"),
    ],
)
def test_a_clock_that_flower_refuses_is_named(
    at: Callable[[float], NodeFolder], ahead: float, told: str
) -> None:
    trouble = clock_trouble(at(ahead))
    assert told in trouble and bool(told) == bool(trouble)
    assert "\n" not in trouble


def test_who_tells_no_time_is_not_blamed(
    at: Callable[[float], NodeFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = at(1000)
    monkeypatch.setattr(Proxy, "tells", False)
    assert seconds_ahead(node) is None and clock_trouble(node) == ""


def test_nobody_answers(tmp_path: Path) -> None:
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a"], port=2, fleet_port=1)
    assert clock_trouble(NodeFolder.load(tmp_path / "fed" / "nodes" / "a")) == ""
