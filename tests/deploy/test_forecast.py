"""What the virtual clock says of a federation, against a federation of real processes.

Two nodes: the training of one takes a known time more a step, the other's line carries a
known number of bytes a second. What the clock is told of this machine is measured first:
how fast a client trains, and how long a round takes where nothing is slow.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.deploy.commands import portable
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.deployment import allowed_by_starter
from fedsuite.engines.processes import World
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.reader import Run, load_run
from tests.deploy.link import Link, linked
from tests.engines.test_same_bits import told

pytestmark = pytest.mark.slow

SECONDS_A_STEP = 1.5
BYTES_A_SECOND = 180_000
HEADERS = 60_000
"""Most bytes of a message beside its payload: TLS, HTTP, polls and heartbeats."""

SLOW = "SECONDS_A_STEP"
NETWORK = """
import os, time
from torch import nn


class Network(nn.Sequential):
    def __init__(self, input_shape, num_classes):
        wide = nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64), nn.ReLU()
        super().__init__(nn.Flatten(), *wide, nn.Linear(64, num_classes))

    def forward(self, rows):
        if self.training:
            time.sleep(float(os.environ.get("SECONDS_A_STEP", 0)))
        return super().forward(rows)
"""
BASE: Mapping[str, Value] = {
    "method": "fedavg",
    "dataset": "digits",
    "model": "slow_network:Network",
    "num-clients": 2,
    "num-rounds": 3,
    "local-steps": 8,
    "evaluate-every": 3,
    "checkpoint-every": 0,
    "device": "cpu",
    "report": False,
}
IN_TURN: Mapping[str, Value] = {
    "clients-per-round": 1,
    "selection": "round-robin",
    "num-rounds": 6,
    "evaluate-every": 6,
}
"""One client a round: so each round's time is that of one."""

CODED: Mapping[str, Value] = {
    "compress-up": "qsgd",
    "compress-down": "qsgd",
    "compress-bits": 4,
}


class Federation:
    """A federation that stands, the line to its second node, and the world as declared."""

    def __init__(self, standing: LocalFederation, link: Link, folder: Path) -> None:
        self._standing, self._folder, self.link = standing, folder, link
        self.world = ""
        self.carried: dict[str, dict[str, int]] = {}

    def run(self, name: str, keys: Mapping[str, Value]) -> Run:
        """Run with some keys; note what the line carried meanwhile."""
        places = {"output-dir": str(self._folder / "runs"), "run-name": name}
        before = dict(self.link.carried)
        values = {**BASE, **keys, **places}
        self._standing.run(portable(Experiment.from_values(values)), lambda line: None)
        after = self.link.carried
        self.carried[name] = {way: after[way] - before[way] for way in after}
        return load_run(self._folder / "runs" / name)

    def locally(self, name: str, keys: Mapping[str, Value]) -> Run:
        """Run the same in this process."""
        places = {"output-dir": str(self._folder / "local"), "run-name": name}
        return fedsuite.run({**BASE, **keys, **places, "workers": 1})


def own_seconds(run: Run) -> dict[int, float]:
    """Return the seconds of each round without its evaluation."""
    return {r["round"]: r["seconds"] - r.get("seconds_evaluate", 0.0) for r in run.rounds}


def virtual_seconds(run: Run) -> dict[int, float]:
    """Return the seconds that the clock gives each round."""
    ends = [0.0, *(r["virtual_seconds"] for r in run.rounds)]
    return {
        r["round"]: end - begin
        for r, begin, end in zip(run.rounds, ends, ends[1:], strict=False)
    }


def trained(run: Run) -> dict[int, int]:
    """Return who trained in each round in which one client did."""
    return {r["round"]: r["client"] for r in run.clients() if r["phase"] == "train"}


def by_client(run: Run, seconds: Mapping[int, float]) -> dict[int, float]:
    """Return the mean of each client's rounds, but the first, in which it loads."""
    whose = trained(run)
    own = {c: [seconds[n] for n, k in whose.items() if k == c][1:] for c in (0, 1)}
    return {client: fmean(values) for client, values in own.items()}


def speed_of(seconds_a_step: float) -> float:
    """Return the multiplications a second of a client on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SLOW, str(seconds_a_step))
        keys = {"num-clients": 1, "local-steps": 2, "devices": "data-centre", "workers": 1}
        run = fedsuite.run({**BASE, **keys, "run-name": f"speed-{seconds_a_step}"})
    (last,) = [r for r in run.clients() if r["phase"] == "train" and r["round"] == 3]
    return float(last["multiplications"]) / own_seconds(run)[3]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("forecast")
    (folder / "slow_network.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch, World("fedsuite") as world:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        speeds = speed_of(SECONDS_A_STEP), speed_of(0.0)
        world.environment["PYTHONPATH"] = str(folder)
        standing = LocalFederation(
            world, folder / "federation", 2, node_config=allowed_by_starter(BASE)
        )
        node = standing.nodes[1]
        with linked(node.superlink) as link:
            standing.nodes[1] = replace(node, superlink=link.address)
            standing.start_superlink()
            standing.start_node(1)
            world.environment[SLOW] = str(SECONDS_A_STEP)
            standing.start_node(0)
            del world.environment[SLOW]
            made = Federation(standing, link, folder)
            free = made.run("free", {**IN_TURN, "devices": "data-centre"})
            made.world = json.dumps(
                {
                    "server-seconds": by_client(free, own_seconds(free))[1],
                    "profiles": {
                        "slow": profile(0, speeds[0], 1e6),
                        "thin-line": profile(1, speeds[1], BYTES_A_SECOND * 8e-6),
                    },
                }
            )
            link.rate = BYTES_A_SECOND
            yield made


def profile(client: int, speed: float, mbit: float) -> Mapping[str, object]:
    return {
        "clients": [client],
        "multiplications-per-second": speed,
        "up-mbit": mbit,
        "down-mbit": mbit,
    }


def test_each_nodes_rounds_take_what_the_clock_forecasts(federation: Federation) -> None:
    run = federation.run("in-turn", {**IN_TURN, "devices": federation.world})
    real, forecast = (by_client(run, s) for s in (own_seconds(run), virtual_seconds(run)))
    told_server = json.loads(federation.world)["server-seconds"]
    print(f"\na round of nothing slow: {told_server:.2f} s; load {os.getloadavg()[0]:.1f}")
    for client, name in enumerate(("slowed node", "limited line")):
        ratio = real[client] / forecast[client]
        print(
            f"{name}: {forecast[client]:.2f} s forecast, {real[client]:.2f} s, {ratio:.3f}"
        )
        assert abs(ratio - 1) < 0.15


@pytest.mark.parametrize("coding", ["none", "qsgd"])
def test_the_line_carries_the_bytes_that_are_counted(
    federation: Federation, coding: str
) -> None:
    keys = {**(CODED if coding == "qsgd" else {}), "devices": federation.world}
    run = federation.run(coding, keys)
    local = federation.locally(coding, keys)
    assert told(run.path) == told(local.path)
    assert virtual_seconds(run) == virtual_seconds(local)
    assert (run.path / "model.safetensors").read_bytes() == (
        local.path / "model.safetensors"
    ).read_bytes()
    real, forecast = own_seconds(run), virtual_seconds(run)
    later = [n for n in real if n > 1]
    print(f"\n{coding}: {[round(real[n] / forecast[n], 3) for n in later]} of the forecast")
    for way in ("up", "down"):
        # Both nodes are sent, and send, as much.
        counted = sum(r[f"bytes_{way}"] for r in run.rounds) / 2
        headers = federation.carried[coding][way] - counted
        print(f"{way}: {counted:.0f} bytes counted, {headers:.0f} more on the line")
        # Three messages to train and one to evaluate, with what is asked in between.
        assert 0 <= headers <= 4 * HEADERS
