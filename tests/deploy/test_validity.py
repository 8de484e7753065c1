"""Certificates that end: told before, refused after, renewed without new nodes' folders."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy import certificates
from fedsuite.deploy.certificates import Certified, make_server_certificate
from fedsuite.deploy.commands import app
from fedsuite.deploy.folders import NodeFolder, SuperLinkFolder, init_federation
from fedsuite.deploy.programs import ask, run_superlink, run_supernode
from fedsuite.deploy.validity import (
    check_node,
    check_superlink,
    renew,
    server_trouble,
    valid_until,
)


def now() -> datetime:
    """Return the time; long runs of tests load this file hours before."""
    return datetime.now(UTC)


@pytest.fixture
def federation(tmp_path: Path) -> tuple[SuperLinkFolder, NodeFolder]:
    init_federation(tmp_path / "f", ["fl.example.org"], ["a"], days=100)
    folders = tmp_path / "f"
    return (
        SuperLinkFolder.load(folders / "superlink"),
        NodeFolder.load(folders / "nodes" / "a"),
    )


def days_left(path: Path) -> float:
    return (valid_until(path) - now()) / timedelta(days=1)


def test_the_authority_outlives_the_servers_certificate(
    federation: tuple[SuperLinkFolder, NodeFolder],
) -> None:
    superlink, node = federation
    assert days_left(superlink.path / "server.pem") == pytest.approx(100, abs=0.1)
    assert days_left(node.path / "ca.crt") == pytest.approx(3650, abs=0.1)


@pytest.mark.parametrize(("days", "told"), [(69, False), (71, True), (99, True)])
def test_an_end_that_is_near_is_told(
    days: int, told: bool, federation: tuple[SuperLinkFolder, NodeFolder]
) -> None:
    superlink, node = federation
    warning = check_superlink(superlink, now() + timedelta(days=days))
    assert bool(warning) == told
    assert check_node(node, now() + timedelta(days=days)) == ""
    if told:
        end = valid_until(superlink.path / "server.pem")
        assert f"server.pem ends on {end:%Y-%m-%d}" in warning and "deploy renew" in warning


def test_an_end_that_has_come_is_an_error(
    federation: tuple[SuperLinkFolder, NodeFolder],
) -> None:
    superlink, node = federation
    with pytest.raises(ConfigError, match=r"server.pem ended on .*deploy renew"):
        check_superlink(superlink, now() + timedelta(days=101))
    late = now() + timedelta(days=3651)
    with pytest.raises(ConfigError, match=r"ca.crt ended on .*deploy init"):
        check_node(node, late)
    renew(superlink, 3649)
    with pytest.raises(ConfigError, match=r"server.pem ended on "):
        check_superlink(superlink, late)


def test_a_renewal(federation: tuple[SuperLinkFolder, NodeFolder]) -> None:
    """The same key, the same names, the same authority, more days."""
    superlink, node = federation
    pem, key = superlink.path / "server.pem", superlink.path / "server.key"
    before = key.read_bytes()
    end = renew(superlink, 400)
    assert end == valid_until(pem)
    assert days_left(pem) == pytest.approx(400, abs=0.1)
    assert key.read_bytes() == before
    assert pem.stat().st_mode & 0o777 == 0o600
    # Certificate and key belong together, and the node's authority vouches for it.
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(pem, key)
    handshake(pem, key, node.path / "ca.crt", "fl.example.org")


def handshake(pem: Path, key: Path, authority: Path, name: str) -> None:
    """Let a client that trusts the authority meet a server with the certificate."""
    here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    here.load_cert_chain(pem, key)
    there = ssl.create_default_context(cafile=str(authority))
    wires = [ssl.MemoryBIO() for _ in range(2)]
    server = here.wrap_bio(wires[0], wires[1], server_side=True)
    client = there.wrap_bio(wires[1], wires[0], server_hostname=name)
    done = set()
    for _ in range(10):
        for end in (client, server):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    assert len(done) == 2


def test_a_handshake_needs_the_right_name(
    federation: tuple[SuperLinkFolder, NodeFolder],
) -> None:
    superlink, node = federation
    pem, key = superlink.path / "server.pem", superlink.path / "server.key"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(pem, key, node.path / "ca.crt", "other.example.org")


def test_a_node_refuses_a_certificate_that_has_ended(
    federation: tuple[SuperLinkFolder, NodeFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink, node = federation
    keeper = superlink.path.parent / "authority"
    parts = (superlink.path / "ca.crt", keeper / "ca.key")
    authority = Certified(*(part.read_bytes() for part in parts))
    monkeypatch.setattr(certificates, "_CLOCKS_DIFFER", timedelta(days=3))
    ended = certificates.make_server_certificate(authority, superlink.hosts, -1)
    pem, key = superlink.path / "server.pem", superlink.path / "server.key"
    pem.write_bytes(ended.certificate)
    key.write_bytes(ended.key)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(pem, key, node.path / "ca.crt", "fl.example.org")


def test_what_a_renewal_needs(federation: tuple[SuperLinkFolder, NodeFolder]) -> None:
    superlink, _ = federation
    before = (superlink.path / "server.pem").read_bytes()
    with pytest.raises(ConfigError, match="authority's own certificate ends on"):
        renew(superlink, 3651)
    keeper = superlink.path.parent / "authority"
    safe = keeper.rename(keeper.with_name("safe"))
    with pytest.raises(ConfigError, match=r"lacks ca\.key.*--authority"):
        renew(superlink, 10)
    assert (superlink.path / "server.pem").read_bytes() == before
    renew(superlink, 10, safe)
    assert (superlink.path / "server.pem").read_bytes() != before
    (superlink.path / "server.pem").write_text("no")
    with pytest.raises(ConfigError, match="holds no certificate"):
        check_superlink(superlink)


def test_nothing_starts_with_a_certificate_that_has_ended(
    federation: tuple[SuperLinkFolder, NodeFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz=None):  # type: ignore[no-untyped-def]
            return now() + timedelta(days=4000)

    monkeypatch.setattr("fedsuite.deploy.validity.datetime", Later)
    lines: list[str] = []
    superlink, node = federation
    with pytest.raises(ConfigError, match=r"server\.pem ended on"):
        run_superlink(superlink, lines.append)
    with pytest.raises(ConfigError, match=r"ca\.crt ended on"):
        run_supernode(node, 9094, lines.append)
    assert lines == []


def test_the_command(federation: tuple[SuperLinkFolder, NodeFolder]) -> None:
    superlink, _ = federation
    answer = CliRunner().invoke(app, ["renew", str(superlink.path), "--days", "200"])
    assert answer.exit_code == 0, answer.output
    assert "holds until" in answer.output
    assert "start SuperLink and proxy again" in answer.output
    assert days_left(superlink.path / "server.pem") == pytest.approx(200, abs=0.1)


@pytest.fixture
def serving(federation: tuple[SuperLinkFolder, NodeFolder]) -> Iterator[int]:
    """Return the port of a server with the SuperLink's certificate as it is then."""
    superlink, _ = federation

    def greet() -> None:
        with suppress(OSError):
            while True:
                line, _ = listening.accept()
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(
                    superlink.path / "server.pem", superlink.path / "server.key"
                )
                with suppress(OSError), line:
                    context.wrap_socket(line, server_side=True).close()

    with socket.create_server(("", 0)) as listening:
        threading.Thread(target=greet, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_a_node_says_why_it_does_not_trust_its_server(
    federation: tuple[SuperLinkFolder, NodeFolder], serving: int, tmp_path: Path
) -> None:
    superlink, node = federation
    node = replace(node, superlink=f"127.0.0.1:{serving}")
    assert server_trouble(node) == ""
    # No name of the certificate, on this machine.
    words = server_trouble(replace(node, superlink=f"127.0.0.2:{serving}"))
    assert "127.0.0.2" in words and "`superlink` in node.toml needs a name" in words
    init_federation(tmp_path / "other", ["127.0.0.1"], ["a"])
    other = NodeFolder.load(tmp_path / "other" / "nodes" / "a")
    words = server_trouble(replace(other, superlink=f"127.0.0.1:{serving}"))
    assert "ca.crt is of another federation" in words
    ended = make_server_certificate(
        Certified(
            (superlink.path / "ca.crt").read_bytes(),
            (superlink.path.parent / "authority" / "ca.key").read_bytes(),
        ),
        ["127.0.0.1"],
        0,
        (superlink.path / "server.key").read_bytes(),
    )
    (superlink.path / "server.pem").write_bytes(ended.certificate)
    time.sleep(1.1)
    words = server_trouble(node)
    assert "(certificate has expired): the server's operator types `fedsuite" in words
    assert "\n" not in words
    assert server_trouble(replace(node, superlink="127.0.0.1:1")) == ""


def test_a_command_says_that_the_certificate_has_ended(
    federation: tuple[SuperLinkFolder, NodeFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: object) -> str:
        raise ConfigError("server.pem ended on 2026-11-29: renew it")

    monkeypatch.setattr("fedsuite.deploy.programs.check_superlink", end)
    with pytest.raises(RunError, match=r"^server\.pem ended on 2026-11-29: renew it$"):
        ask(federation[0], "supernode", "list", "nowhere", "--format", "json")
