"""Ports for programs that are started later: free ones, each one's own."""

import socket
from pathlib import Path

import pytest

from fedsuite.core.errors import RunError
from fedsuite.deploy import programs
from fedsuite.deploy.folders import NodeFolder, init_federation
from fedsuite.engines.ports import LOOPBACK, chosen_port


def listening(port: int) -> socket.socket:
    """Return a server's socket, which is set as Flower's servers set it."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, port))
    server.listen()
    return server


def test_two_nodes_get_a_port_each_which_servers_can_bind() -> None:
    with chosen_port(None, "--port") as one, chosen_port(None, "--port") as two:
        assert one != two
        with listening(one), listening(two):
            pass


def test_a_port_that_is_asked_for() -> None:
    with chosen_port(None, "--port") as free:
        pass
    with chosen_port(free, "--port") as found:
        assert found == free
        with listening(free):
            pass
    with (
        listening(free),
        pytest.raises(
            RunError, match=rf"--port {free}: .* leave the option out"
        ) as refused,
        chosen_port(free, "--port"),
    ):
        pass
    assert "\n" not in str(refused.value)


class Started:
    """Notes commands in place of starting them."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, _: str, command: list[str]) -> None:
        self.commands.append(command)

    def watch(self, _: object) -> None: ...


def test_a_node_chooses_its_port_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a", "b"], days=2)
    started = Started()
    monkeypatch.setattr(programs, "_supervised", lambda *_: started)
    monkeypatch.setattr(programs, "clock_trouble", lambda _: "")
    monkeypatch.setattr(programs, "check_node", lambda _: "")
    lines: list[str] = []
    ports = []
    for name in ("a", "b"):
        programs.run_supernode(
            NodeFolder.load(tmp_path / "fed/nodes" / name), None, lines.append
        )
        node, helper = started.commands[-2:]
        port = node[node.index("--port") + 1]
        assert helper[helper.index("--runtime-api-address") + 1] == f"{LOOPBACK}:{port}"
        assert f"SuperNode {name}: its own apps reach it on {LOOPBACK}:{port}" == lines[-1]
        ports.append(port)
