"""Sites as real SuperNodes: registered keys, TLS, and data that only their nodes name."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.engines.deployment import node_config_text
from fedsuite.engines.flower import SuperLink as Link
from fedsuite.engines.flower import ask_outcome, connect, fleet_is_grpc, in_world
from fedsuite.engines.processes import Program, World
from fedsuite.engines.staging import stage_app
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.reader import load_run
from tests.data.site_files import write_site
from tests.small_runs import final_model

NAMES = ("north", "east")
SITES: dict[str, Value] = {
    "method": "scaffold",
    "dataset": "digits",
    "model": "linear",
    "sites": ", ".join(NAMES),
    "num-rounds": 2,
    "evaluate-every": 2,
    "client-validation-fraction": 0.2,
    "report": False,
    "device": "cpu",
}


def call(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def make_certificates(folder: Path) -> None:
    """Make a certificate authority of our own, and a certificate for 127.0.0.1."""
    folder.mkdir()
    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    subject = ("-subj", "/CN=localhost")
    authority = ("-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=our own CA")
    call(folder, "openssl", "req", "-x509", *key, *authority)
    request = ("-keyout", "server.key", "-out", "server.csr", *subject)
    call(folder, "openssl", "req", *key[:3], *request)
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    signer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    files = ("-in", "server.csr", "-out", "server.pem", "-extfile", "names")
    call(folder, "openssl", "x509", "-req", *signer, *files)


def start_superlink(world: World, keys: Path) -> Link:
    port = world.reserve_port()
    control = fleet = f"127.0.0.1:{port}"
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port)]
    if fleet_is_grpc():
        fleet = f"127.0.0.1:{world.reserve_port()}"
        command += ["--fleet-api-address", fleet]
    for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.pem")):
        command += [f"--ssl-{option}", str(keys / name)]
    command += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    program = world.start("superlink", command)
    program.wait_until(lambda: "running on" in program.text)
    link = Link(program, control, fleet)
    connect(world, link)
    config = Path(world.environment["FLWR_HOME"]) / "config.toml"
    secure = f'root-certificates = "{keys / "ca.crt"}"'
    config.write_text(config.read_text().replace("insecure = true", secure))
    return link


def finished(world: World, name: str, *command: str) -> Program:
    program = world.start(name, list(command))
    assert program.process.wait(timeout=300) == 0, program.text
    return program


def start_site(world: World, link: Link, keys: Path, name: str, data: Path) -> None:
    call(keys, "ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name)
    register = ("flwr", "supernode", "register", str(keys / f"{name}.pub"), "fedsuite")
    finished(world, f"register-{name}", *register, "--name", name)
    command = ["flower-supernode", "--superlink", link.fleet_address]
    command += ["--root-certificates", str(keys / "ca.crt")]
    command += ["--auth-supernode-private-key", str(keys / name)]
    command += ["--host", "127.0.0.1", "--port", str(world.reserve_port())]
    command += ["--node-config", node_config_text({"data": str(data)})]
    node = world.start(f"supernode-{name}", command)
    node.wait_until(lambda: "SuperNode ID" in node.text)


def deploy(tmp_path: Path, sites: dict[str, Path], after: Callable[[World], None]) -> str:
    """Run the experiment on SuperNodes that start in reverse order; return the log."""
    said: list[str] = []

    def drive(world: World) -> None:
        world.environment["FEDSUITE_STATE"] = str(tmp_path / "state")
        keys = world.folder / "keys"
        make_certificates(keys)
        config = SITES | {"output-dir": str(tmp_path), "run-name": "deployed"}
        app = stage_app(world.folder / "app", Experiment.from_values(config).values)
        link = start_superlink(world, keys)
        for name in reversed(sites):
            start_site(world, link, keys, name, sites[name])
        run = finished(world, "run", "flwr", "run", str(app), "fedsuite", "--stream")
        outcome = ask_outcome(world)
        said.append(f"{outcome}\n{run.text}")
        after(world)

    in_world(drive)
    return said[0]


@pytest.mark.smoke
@pytest.mark.slow
def test_sites_as_real_nodes_give_the_bits_of_a_rehearsal(tmp_path: Path) -> None:
    sites = {name: write_site(tmp_path / "at" / name, k) for k, name in enumerate(NAMES)}
    log = deploy(tmp_path, sites, lambda world: None)
    assert "finished:completed" in log, log
    places = {"site-dirs": str(tmp_path / "at"), "output-dir": str(tmp_path)}
    rehearsal = fedsuite.run(SITES | places | {"run-name": "rehearsal"})
    deployed = load_run(tmp_path / "deployed")
    assert final_model(deployed.path) == final_model(rehearsal.path)
    lines = [(run.path / "clients.jsonl").read_text() for run in (deployed, rehearsal)]
    assert lines[0] == lines[1]
    # What a site keeps is found under its number, whatever node it was.
    state = tmp_path / "state" / "deployed"
    assert sorted(folder.name for folder in state.iterdir()) == ["0", "1"]


@pytest.mark.slow
def test_the_reason_why_a_sites_data_is_refused_stays_at_the_site(tmp_path: Path) -> None:
    good = write_site(tmp_path / "at" / "north", 0)
    empty = tmp_path / "at" / "mr-smith"
    empty.mkdir()
    logs: list[str] = []

    def keep(world: World) -> None:
        logs.append((world.folder / "supernode-east.log").read_text())

    log = deploy(tmp_path, {"north": good, "east": empty}, keep)
    assert "finished:failed" in log
    assert "site east failed the hello" in log
    assert "its own log says why" in log
    assert "mr-smith" not in log
    assert "no file *.parquet, *.csv, *.tsv" in logs[0]
