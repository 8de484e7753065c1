"""A running Ray cluster: its address, what its nodes must have, and a node's death."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import Value
from fedsuite.engines.cluster import Cluster, Node, chosen_address, join, misfit_of
from fedsuite.engines.cluster_probe import keeps_state
from fedsuite.engines.room import Room

OURS = {"Python": "3.11.7", "fedsuite": "abc"}
NODE = Node("10.0.0.1 (a)", 8.0, 4.0, OURS, data="d")
FOLDER = Path("/shared")


def test_key_wins_over_variable_and_local_over_both() -> None:
    variable = {"RAY_ADDRESS": "10.0.0.1:6379"}
    assert chosen_address("", {}) == ""
    assert chosen_address("", variable) == "10.0.0.1:6379"
    assert chosen_address("head:7000", variable) == "head:7000"
    assert chosen_address("local", variable) == ""
    assert chosen_address("", {"RAY_ADDRESS": "local"}) == ""


def test_auto_is_the_cluster_of_this_machine(tmp_path: Path) -> None:
    here = {"RAY_TMPDIR": str(tmp_path)}
    with pytest.raises(RunError, match="no Ray cluster runs on this machine"):
        chosen_address("auto", here)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert chosen_address("auto", here) == "10.0.0.1:6379"


@pytest.mark.parametrize(
    "address", ["head", "head:", ":6379", "ray://head:10001", "h:70000"]
)
def test_another_form_is_refused_and_its_place_named(address: str) -> None:
    with pytest.raises(ConfigError, match="key ray-address"):
        chosen_address(address, {})
    with pytest.raises(ConfigError, match="variable RAY_ADDRESS"):
        chosen_address("", {"RAY_ADDRESS": address})


def test_wrong_address_is_one_line_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(
            RunError, match=f"^no Ray cluster at {address} .*refused"
        ) as told:
            join({"state-dir": str(tmp_path)}, address)
    assert "\n" not in str(told.value)


def test_room_is_a_sum_over_nodes_not_of_their_resources() -> None:
    cluster = Cluster("head:1", (NODE, replace(NODE, cpus=3.0, gpus=0.0)))
    assert cluster.room(Room()) == 11
    # 4 + 1: the odd core of the second serves nobody
    assert cluster.room(Room(client_cpus=2)) == 5
    assert cluster.room(Room(client_gpus=0.1)) == 8  # of the first alone
    assert cluster.room(Room(client_gpus=1.0)) == 4
    with pytest.raises(RunError, match=r"node 10\.0\.0\.1 \(a\) .* for 4 such clients"):
        cluster.room(Room(client_gpus=0.6))
    with pytest.raises(RunError, match="no node of the Ray cluster head:1 has 9 CPUs"):
        cluster.room(Room(client_cpus=9))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"facts": {**OURS, "Python": "3.12.1"}},
            "has Python 3.12.1, and this process 3.11",
        ),
        ({"facts": {"Python": "3.11.7", "fedsuite": ""}}, "has fedsuite none"),
        ({"data_error": "there is no folder"}, "cannot use the data: there is no folder"),
        ({"data": "e"}, "different data"),
        ({"shares_state": False}, "cannot write into /shared"),
    ],
)
def test_node_that_does_not_fit_is_named(changes: Mapping[str, Any], words: str) -> None:
    other = replace(NODE, name="10.0.0.2 (b)", **changes)
    assert misfit_of((NODE, NODE), OURS, True, FOLDER) == ""
    told = misfit_of((NODE, other), OURS, True, FOLDER)
    assert words in told and "10.0.0.2 (b)" in told


def test_folder_of_state_matters_to_methods_with_state_alone() -> None:
    apart = replace(NODE, shares_state=False)
    assert misfit_of((NODE, apart), OURS, False, FOLDER) == ""
    stateful = {"apfl", "scaffold", "ditto", "fedakd", "lg-fedavg", "standalone", "feddyn"}
    stateless = {"fedavg", "fedprox", "fedeba-plus", "fedsgd"}
    for method in (*stateful, *stateless):
        values = {"method": method, "decomposition": False}
        assert keeps_state(values) == (method in stateful), method


TWO_NODES = """
import os, sys
from ray.cluster_utils import Cluster
head = {"num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
second = cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(second, allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
"""
"""A program with a cluster of two nodes, one core each; a line kills the second."""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["subprocess.Popen[str]"]:
    folder = Path("/tmp") / f"fedray-{os.getpid()}"  # sockets need short paths
    folder.mkdir()
    program = subprocess.Popen(
        [sys.executable, "-c", TWO_NODES],
        env={**os.environ, "RAY_TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield program
    assert program.stdin is not None
    program.stdin.close()
    try:
        program.wait(60)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGTERM)
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def run(folder: Path, name: str, **changes: Value) -> tuple[bytes, bytes]:
    values: dict[str, Value] = {
        "method": "fedavg",
        "dataset": "digits",
        "num-clients": 4,
        "partitioner": "shards",
        "num-rounds": 2,
        "local-epochs": 1,
        "report": False,
        "output-dir": str(folder),
        "run-name": name,
    }
    done = fedsuite.run(values | changes).path
    return (done / "model.safetensors").read_bytes(), (done / "clients.jsonl").read_bytes()


@pytest.mark.slow
def test_two_nodes_have_the_bits_of_one_process_also_when_one_dies(
    cluster: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.stdout is not None and cluster.stdin is not None
    address = cluster.stdout.readline().strip()
    there: dict[str, Value] = {"engine": "ray", "ray-address": address}
    apfl = run(tmp_path, "apfl", **{"method": "apfl"})
    assert run(tmp_path, "apfl-there", **{"method": "apfl"}, **there) == apfl

    monkeypatch.setenv("RAY_ADDRESS", address)
    stdin, rounds = cluster.stdin, tmp_path / "there" / "rounds.jsonl"
    long: dict[str, Value] = {"num-rounds": 120, "evaluate-every": 120}

    def kill() -> None:
        while not rounds.exists() or rounds.read_bytes().count(b"\n") < 10:
            time.sleep(0.05)
        stdin.write("kill\n")
        stdin.flush()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    model, _ = run(tmp_path, "there", **long, **{"engine": "ray"})
    assert cluster.stdout.readline() == "killed\n"
    assert model == run(tmp_path, "here", **long, **{"engine": "local"})[0]
