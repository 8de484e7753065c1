"""A whole federation with TLS, keys and process isolation, as processes of this machine."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.deploy.commands import portable
from fedsuite.deploy.folders import (
    NodeFolder,
    SuperLinkFolder,
    add_nodes,
    init_federation,
    remove_nodes,
    replace_keys,
)
from fedsuite.deploy.programs import (
    is_healthy,
    register_nodes,
    superlink_command,
    superlink_environment,
    supernode_command,
    supernode_environment,
    write_connection,
)
from fedsuite.deploy.rehearsal import rehearse
from fedsuite.deploy.status import list_nodes
from fedsuite.engines.flower import fleet_is_grpc
from fedsuite.engines.processes import World
from fedsuite.experiment.experiment import Experiment
from tests.engines.test_same_bits import told

pytestmark = pytest.mark.slow

COMMON: Mapping[str, Value] = {
    "dataset": "digits",
    "num-clients": 4,
    "partitioner": "shards",
    "num-rounds": 2,
    "device": "cpu",
}
METHODS: Mapping[str, Mapping[str, Value]] = {
    "fedavg": {"method": "fedavg"},
    "fedeba-plus": {"method": "fedeba-plus"},
    "fedakd": {"method": "fedakd", "model": "cnn-fedakd"},
    "fedal": {
        "method": "fedal",
        "client-models": "mlp:hidden-width=32, linear",
        "public-size": 60,
        "transfer-steps": 1,
        "local-steps": 2,
    },
    "decomposition": {
        "model": "cnn-shallow",
        "decomposition": True,
        "coefficient-period": 2,
        "personal-atoms": True,
    },
}


ALL = os.environ.get("FEDSUITE_FAULTS") == "all"


@pytest.mark.parametrize("name", METHODS if ALL else ("fedal",))
def test_the_bits_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    values = {**COMMON, **METHODS[name]}
    places = {"output-dir": str(tmp_path / "local"), "run-name": "run"}
    local = fedsuite.run({**values, **places})
    places = {"output-dir": str(tmp_path / "deployed"), "run-name": "run"}
    config = portable(Experiment.from_values({**values, **places}))
    lines: list[str] = []
    rehearse(config, 2, tmp_path / "federation", lines.append)
    deployed = tmp_path / "deployed" / "run"
    assert told(deployed) == told(local.path)
    for file in ("model.safetensors",):
        if (local.path / file).exists():
            assert (deployed / file).read_bytes() == (local.path / file).read_bytes()
    states = [p.name for p in (tmp_path / "federation" / "nodes").rglob("*.safetensors")]
    assert bool(states) == (name in ("fedakd", "fedal", "decomposition"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Path]]:
    """Yield a world with a SuperLink whose one node is registered, and its folder."""
    folder = tmp_path_factory.mktemp("deploy") / "federation"
    with World("fedsuite") as world:
        ports = [world.reserve_port(), world.reserve_port()]
        fleet = ports[1] if fleet_is_grpc() else None
        init_federation(folder, ["127.0.0.1"], ["a"], port=ports[0], fleet_port=fleet)
        superlink = SuperLinkFolder.load(folder / "superlink")
        write_connection(superlink)
        world.environment.update(
            {"FLWR_HOME": superlink_environment(superlink)["FLWR_HOME"]}
        )
        link = world.start("superlink", superlink_command(superlink, "127.0.0.1"))
        link.wait_until(lambda: is_healthy(superlink))
        register_nodes(superlink)
        yield world, folder


def try_to_join(world: World, folder: Path, *changes: str) -> str:
    """Start a SuperNode from a folder; return what it said until it ended or was in."""
    command = supernode_command(NodeFolder.load(folder), world.reserve_port())
    for change in changes:
        name, _, value = change.partition(" ")
        index = command.index(name)
        command[index : index + 2] = [name, value] if value else []
    world.environment.update(supernode_environment(NodeFolder.load(folder)))
    node = world.start(f"node-{time.monotonic_ns()}", command)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and node.process.poll() is None:
        if "SuperNode ID" in node.text:
            break
        time.sleep(0.1)
    text = node.text
    if node.process.poll() is None:
        node.process.terminate()
        node.process.wait()
    return text


def joined(text: str) -> bool:
    return "SuperNode ID" in text


@pytest.mark.smoke
def test_the_node_with_the_key_joins(federation: tuple[World, Path]) -> None:
    world, folder = federation
    assert joined(try_to_join(world, folder / "nodes" / "a"))
    (entry,) = list_nodes(SuperLinkFolder.load(folder / "superlink"))
    assert entry[0] == "a" and entry[1] in ("online", "offline")


@pytest.mark.smoke
def test_a_key_that_was_never_let_in(
    federation: tuple[World, Path], tmp_path: Path
) -> None:
    world, folder = federation
    init_federation(tmp_path / "other", ["127.0.0.1"], ["a"])
    stranger = tmp_path / "stranger"
    shutil.copytree(folder / "nodes" / "a", stranger)
    shutil.copy(tmp_path / "other" / "nodes" / "a" / "key", stranger / "key")
    assert not joined(try_to_join(world, stranger))


def test_a_node_that_joins_later_gets_a_new_key_and_leaves(
    federation: tuple[World, Path], tmp_path: Path
) -> None:
    world, folder = federation
    superlink = SuperLinkFolder.load(folder / "superlink")
    node = folder / "nodes" / "later"
    larger = add_nodes(superlink, ["later"], node.parent)
    register_nodes(larger)
    assert joined(try_to_join(world, node))
    replace_keys(larger, ["later"], tmp_path)
    register_nodes(larger)
    assert not joined(try_to_join(world, node))
    shutil.copytree(tmp_path / "later", node, dirs_exist_ok=True)
    assert joined(try_to_join(world, node))
    register_nodes(remove_nodes(larger, ["later"]))
    assert not joined(try_to_join(world, node))


def test_no_key(federation: tuple[World, Path]) -> None:
    world, folder = federation
    node = folder / "nodes" / "a"
    assert not joined(try_to_join(world, node, "--auth-supernode-private-key"))


def test_a_server_that_somebody_else_vouches_for(
    federation: tuple[World, Path], tmp_path: Path
) -> None:
    world, folder = federation
    init_federation(tmp_path / "other", ["127.0.0.1"], ["a"])
    other = tmp_path / "other" / "nodes" / "a" / "ca.crt"
    node = folder / "nodes" / "a"
    text = try_to_join(world, node, f"--root-certificates {other}")
    assert not joined(text)


def test_commands_of_whoever_has_another_authority(
    federation: tuple[World, Path], tmp_path: Path
) -> None:
    _, folder = federation
    init_federation(tmp_path / "other", ["127.0.0.1"], ["a"])
    stranger = SuperLinkFolder.load(folder / "superlink")
    copy = tmp_path / "copy"
    shutil.copytree(stranger.path, copy, ignore=shutil.ignore_patterns("state.db*"))
    shutil.copy(tmp_path / "other" / "superlink" / "ca.crt", copy / "ca.crt")
    assert is_healthy(stranger)
    assert not is_healthy(SuperLinkFolder.load(copy))


def test_stopping_the_command_stops_both_programs(tmp_path: Path) -> None:
    with World("fedsuite") as world:
        port = world.reserve_port()
        fleet = world.reserve_port() if fleet_is_grpc() else None
        init_federation(tmp_path / "f", ["127.0.0.1"], ["a"], port=port, fleet_port=fleet)
        folder = tmp_path / "f" / "superlink"
        words = [sys.executable, "-m", "fedsuite", "deploy", "superlink", str(folder)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if "nodes may join" in line:
                    break
            else:
                pytest.fail(f"the SuperLink ended: {process.wait()}")
            assert is_healthy(SuperLinkFolder.load(folder))
            process.terminate()
            process.stdout.read()
            assert process.wait(timeout=60) == 0
        assert not is_healthy(SuperLinkFolder.load(folder))
