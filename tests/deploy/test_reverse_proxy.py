"""Who reaches the Control API: nobody but the server's own machine, unless asked for."""

import re
import resource
import shlex
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy import programs, reverse_proxy
from fedsuite.deploy.folders import SuperLinkFolder, init_federation
from fedsuite.deploy.programs import ask, superlink_command, write_connection
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.deploy.reverse_proxy import (
    REQUESTS_OF_ONE_ADDRESS,
    check_listening,
    nginx_config,
    proxy_command,
)
from fedsuite.engines.flower import (
    CONNECTION,
    fleet_is_grpc,
)
from fedsuite.engines.ports import LOOPBACK
from fedsuite.engines.processes import World
from fedsuite.engines.staging import stage_keys
from fedsuite.results.reader import load_run
from tests.deploy.accidents import values
from tests.deploy.shipped import DEPLOY, README

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

HTTP = pytest.mark.skipif(fleet_is_grpc(), reason="SuperNodes have a port to themselves")
REAL = pytest.mark.skipif(NGINX is None, reason="NO NGINX HERE: install it to test it")


@pytest.fixture(params=[False, True], ids=["http", "grpc"])
def grpc(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether Flower has a port for SuperNodes alone, as 1.39 has; both are tried."""
    for module in (reverse_proxy, programs):
        monkeypatch.setattr(module, "fleet_is_grpc", lambda: request.param)
    return bool(request.param)


def made(tmp_path: Path, **ports: int | None) -> SuperLinkFolder:
    init_federation(tmp_path / "f", ["fed.example.org"], ["a"], **ports)
    return SuperLinkFolder.load(tmp_path / "f" / "superlink")


def hosts_of(command: list[str]) -> dict[str, str]:
    """Return the address of each API that has one in the SuperLink's command."""
    pairs = dict(pairwise(command))
    fleet = pairs.get("--fleet-api-address", "")
    return {"control": pairs["--host"], "fleet": fleet.rpartition(":")[0]}


def test_by_default_nobody_else_reaches_anything(tmp_path: Path, grpc: bool) -> None:
    folder = made(tmp_path)
    assert (folder.port, folder.fleet_port) == (8000, 8443)
    assert check_listening(8000, 8443, "127.0.0.1", opens=False) == ""
    found = hosts_of(superlink_command(folder))
    assert found == {"control": "127.0.0.1", "fleet": "127.0.0.1" if grpc else ""}


def test_the_control_api_is_open_to_others_on_demand_alone(
    tmp_path: Path, grpc: bool
) -> None:
    folder = made(tmp_path, port=8443, fleet_port=9092 if grpc else None)
    ports = folder.port, folder.fleet_port
    if grpc:
        # The Fleet API asks for a key: it may be reached, and the Control API is not.
        assert check_listening(*ports, "0.0.0.0", opens=False) == ""
        found = hosts_of(superlink_command(folder, "0.0.0.0"))
        assert found == {"control": "127.0.0.1", "fleet": "0.0.0.0"}
    else:
        with pytest.raises(ConfigError, match="run code at all sites, without any key"):
            check_listening(*ports, "0.0.0.0", opens=False)
    warning = check_listening(*ports, "0.0.0.0", opens=True)
    assert re.search(r"warning: the Control API is open on 0.0.0.0:8443.*sites", warning)
    found = hosts_of(superlink_command(folder, "0.0.0.0", opens=True))
    assert found["control"] == "0.0.0.0"


@pytest.mark.parametrize(
    ("ports", "bind", "opens", "words"),
    [
        ((8443, 8443), "127.0.0.1", True, "does nothing with --bind 127.0.0.1"),
        ((8443, 8443), "192.0.2.7", True, "at 127.0.0.1: use 0.0.0.0"),
        ((8000, 8443), "0.0.0.0", True, "nodes dial port 8443, and without nginx"),
        ((8443, 8443), "fed.example.org", False, "expected an IP address"),
        ((8443, 8443), "::", False, "could run code at all sites"),
        ((8443, 8443), "192.0.2.7", False, "could run code at all sites"),
    ],
)
def test_what_cannot_be_listened_on(
    ports: tuple[int, int],
    bind: str,
    opens: bool,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reverse_proxy, "fleet_is_grpc", lambda: False)
    with pytest.raises(ConfigError, match=words) as caught:
        check_listening(*ports, bind, opens=opens)
    assert "\n" not in str(caught.value)


def test_two_apis_of_flower_1_39_need_two_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reverse_proxy, "fleet_is_grpc", lambda: True)
    with pytest.raises(ConfigError, match="port 8443 is both"):
        check_listening(8443, 8443, "127.0.0.1", opens=False)


def test_each_start_warns_of_an_open_control_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything runs: here nothing does."""
    monkeypatch.setattr(reverse_proxy, "fleet_is_grpc", lambda: False)
    folder = made(tmp_path, port=8443, fleet_port=None)
    told: list[str] = []

    @contextmanager
    def no_program(*words: object) -> Iterator[None]:
        raise RunError("nothing is started here")
        yield

    monkeypatch.setattr(programs, "_supervised", no_program)
    with pytest.raises(RunError, match="nothing is started"):
        programs.run_superlink(folder, told.append, "0.0.0.0", opens=True)
    assert [line for line in told if "the Control API is open" in line]
    told.clear()
    with pytest.raises(ConfigError, match="--open-control-api"):
        programs.run_superlink(folder, told.append, "0.0.0.0")
    assert not told


# ------------------------------------------------------------------------ nginx before it


def test_the_shipped_file_is_the_one_that_init_writes() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    assert text == nginx_config(8000, 8443, keys="/run/secrets/", temporary="/tmp/")


@HTTP
def test_init_writes_it_where_sites_have_a_port_of_their_own(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert (folder.path / "nginx.conf").read_text() == nginx_config(8000, 8443)
    init_federation(tmp_path / "g", ["h"], ["a"], port=8443, fleet_port=None)
    assert not (tmp_path / "g" / "superlink" / "nginx.conf").exists()


def test_the_readmes_say_how_to_start_it() -> None:
    command = shlex.join(proxy_command(Path("FOLDER")))
    command = command.replace("FOLDER", "$PWD/federation/superlink")
    assert command in README
    assert command in (DEPLOY.parent / "README.md").read_text()
    assert "--bind 0.0.0.0 --open" not in (DEPLOY.parent / "README.md").read_text()


SPELLINGS = (
    "/v1/control/list-runs",
    "/health",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "//v1//control/list-runs",
    "/v1/control/list-runs#/../../fleet/x",
    "/v1/control/list-runs?/../../fleet/x",
    "/v1/runtime/x",
)
"""Paths that are none of the Fleet API's, however they are written."""


def status_of(folder: SuperLinkFolder, path: str) -> str:
    """Return the answer to a path that is sent as it is written, without tidying."""
    context = ssl.create_default_context(cafile=str(folder.path / "ca.crt"))
    with (
        socket.create_connection((LOOPBACK, folder.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=LOOPBACK) as line,
    ):
        line.sendall(
            f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: 0\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        return line.recv(12).decode()[9:]


@contextmanager
def many_files(count: int) -> Iterator[None]:
    """Let this process have so many files open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def proxy(folder: SuperLinkFolder, superlink: int = 9) -> Iterator[SuperLinkFolder]:
    """Run one process of nginx before a SuperLink on a port, by default before none."""
    assert NGINX is not None
    with World("fedsuite") as world:
        outside = replace(folder, port=world.reserve_port())
        text = nginx_config(superlink, outside.port)
        text = text.replace("worker_processes auto;", "worker_processes 1;")
        (folder.path / "nginx.conf").write_text(text)
        with subprocess.Popen([NGINX, *proxy_command(folder.path)[1:]]) as nginx:
            try:
                while True:
                    try:
                        status_of(outside, "/")
                        break
                    except ConnectionRefusedError:
                        assert nginx.poll() is None
                        time.sleep(0.05)
                yield outside
            finally:
                nginx.terminate()


@HTTP
@pytest.mark.slow
@REAL
def test_half_a_header_1100_times_does_not_shut_the_door(tmp_path: Path) -> None:
    """With 1,024 connections a process of nginx let nobody in for a minute."""
    with many_files(8192), ExitStack() as held, proxy(made(tmp_path)) as outside:
        context = ssl.create_default_context(cafile=str(outside.path / "ca.crt"))
        for _ in range(1100):
            line = socket.create_connection((LOOPBACK, outside.port), timeout=20)
            line = held.enter_context(context.wrap_socket(line, server_hostname=LOOPBACK))
            line.sendall(b"POST /v1/fleet/x HTTP/1.1\r\nHost:")
        assert status_of(outside, "/") == "404"


@HTTP
@pytest.mark.slow
@REAL
def test_an_address_has_so_many_requests_at_a_time(tmp_path: Path) -> None:
    """Requests whose header is there and whose body is not; the SuperLink never answers."""
    with (
        many_files(8192),
        ExitStack() as held,
        socket.create_server((LOOPBACK, 0), backlog=1024) as silent,
        proxy(made(tmp_path), silent.getsockname()[1]) as outside,
    ):
        context = ssl.create_default_context(cafile=str(outside.path / "ca.crt"))
        for _ in range(REQUESTS_OF_ONE_ADDRESS):
            line = socket.create_connection((LOOPBACK, outside.port), timeout=20)
            line = held.enter_context(context.wrap_socket(line, server_hostname=LOOPBACK))
            line.sendall(
                f"POST /v1/fleet/x HTTP/1.1\r\nHost: {LOOPBACK}\r\n"
                "Content-Length: 9\r\n\r\n".encode()
            )
        assert status_of(outside, "/v1/fleet/x") == "503"


@HTTP
@pytest.mark.slow
@REAL
def test_sites_come_in_and_the_control_api_stays_closed(tmp_path: Path) -> None:
    """As init writes it, and started as the README says, from another folder."""
    assert NGINX is not None
    run_config = values(tmp_path, method="fedavg", model="linear", num_rounds=1)
    with World("fedsuite") as world:
        federation = LocalFederation(world, tmp_path / "federation", 2)
        inside = federation.superlink
        outside = replace(inside, port=world.reserve_port())
        config = inside.path / "nginx.conf"
        config.write_text(nginx_config(inside.port, outside.port))
        command = [NGINX, *proxy_command(inside.path)[1:]]
        with subprocess.Popen(command, cwd=tmp_path) as nginx:
            try:
                address = f"{LOOPBACK}:{outside.port}"
                federation.nodes = [
                    replace(node, superlink=address) for node in federation.nodes
                ]
                federation.start()
                assert {path: status_of(outside, path) for path in SPELLINGS} == (
                    dict.fromkeys(SPELLINGS, "404")
                )
                assert status_of(inside, "/v1/control/list-runs") != "404"
                app = stage_keys(tmp_path / "app", run_config)
                write_connection(outside)
                for words in (("ls",), ("run", str(app))):
                    with pytest.raises(RunError, match=f"flwr {words[0]} .*failed"):
                        ask(outside, *words, CONNECTION)
                write_connection(inside)
                assert '"runs": []' in ask(inside, "ls", CONNECTION, "--format", "json")
                federation.run(run_config, lambda line: None)
            finally:
                nginx.terminate()
    assert load_run(tmp_path / "runs" / "run").manifest["status"] == "finished"
