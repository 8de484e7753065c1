"""Secure sums between a SuperLink and SuperNodes: four messages a round in place of one."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.deploy.commands import portable
from fedsuite.deploy.folders import NODE_PUBLIC_KEY, PARTNERS_FILE, NodeFolder
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.deploy.relay.ledger import LEDGER, read_chain
from fedsuite.deploy.relay.policy import default_text
from fedsuite.engines.local import LocalGrid
from fedsuite.engines.processes import World
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import EVALUATE, HELLO, TRAIN
from fedsuite.messages.secure_sums import STAGES
from tests.deploy.accidents import kill, when
from tests.engines.test_same_bits import told

pytestmark = pytest.mark.slow

NUM_NODES = 4

VALUES: dict[str, Value] = {
    "method": "fedavg",
    "dataset": "digits",
    "model": "linear",
    "num-clients": NUM_NODES,
    "num-rounds": 2,
    "secure-aggregation": "masked",
    "device": "cpu",
    "run-name": "run",
    "report": False,
}


@pytest.fixture
def world() -> Iterator[World]:
    with World("fedsuite") as world:
        yield world


def deployed(
    federation: LocalFederation,
    folder: Path,
    on_line: Callable[[str], None] = print,
    **changes: Value,
) -> Path:
    """Run an experiment between real processes; return the run's folder."""
    renamed = {name.replace("_", "-"): value for name, value in changes.items()}
    places = {"output-dir": str(folder / "deployed")}
    config = portable(Experiment.from_values({**VALUES, **renamed, **places}))
    federation.run(config, on_line)
    return folder / "deployed" / "run"


def rounds(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def bits(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def test_the_sums_are_those_of_one_process(world: World, tmp_path: Path) -> None:
    local = fedsuite.run({**VALUES, "output-dir": str(tmp_path / "local")}).path
    federation = LocalFederation(world, tmp_path / "federation", NUM_NODES)
    federation.start()
    run = deployed(federation, tmp_path)
    assert [row["summed_clients"] for row in rounds(run)] == [4, 4]
    assert told(run) == told(local)
    assert bits(run) == bits(local)


class Lossy(LocalGrid):
    """Loses what the rounds of a run between processes have lost."""

    summed: Sequence[float | None] = ()
    gone = NUM_NODES - 1

    def _answers(self, messages: Sequence[Message]) -> Iterator[Message]:
        yield from super()._answers([m for m in messages if not self._is_lost(m)])

    def _is_lost(self, message: Message) -> bool:
        if message.metadata.message_type != TRAIN:
            return False
        summed = self.summed[int(message.metadata.group_id.split(".")[0]) - 1]
        (config,) = message.content.config_records.values()
        is_gone = config["client-ids"] == [self.gone]
        return summed is None or (summed < NUM_NODES and is_gone)


def test_a_node_is_killed_and_no_sum_is_wrong(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = LocalFederation(world, tmp_path / "federation", NUM_NODES)
    federation.start()
    lines: list[str] = []

    def accident() -> None:
        kill(federation.running[federation.nodes[Lossy.gone].name])

    keys: dict[str, Value] = {"num_rounds": 3, "round_timeout": 40.0}
    run = deployed(federation, tmp_path, when(lines, "round 1 of 3", accident), **keys)
    summed = [row.get("summed_clients") for row in rounds(run)]
    # On a busy machine any message may be late: then the round is void.
    assert set(summed) <= {4, 3, None}
    assert 3 in summed
    monkeypatch.setattr(Lossy, "summed", summed)
    monkeypatch.setattr("fedsuite.engines.local.LocalGrid", Lossy)
    again: dict[str, Value] = {"num-rounds": 3, "output-dir": str(tmp_path / "local")}
    local = fedsuite.run({**VALUES, **again}).path
    assert bits(run) == bits(local)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_sites_with_a_policy_let_out_sums_under_masks_alone(
    world: World, tmp_path: Path
) -> None:
    # Each message starts a process of its own at each site: as few as there can be.
    few: dict[str, Value] = {"num_clients": 3, "num_rounds": 1}
    renamed = {name.replace("_", "-"): value for name, value in few.items()}
    places = {"output-dir": str(tmp_path / "local")}
    local = fedsuite.run({**VALUES, **renamed, **places}).path
    federation = LocalFederation(world, tmp_path / "federation", 3, policy=default_text())
    # Each operator lists the partners, and so demands masks, of the app and of the relay.
    keys = [(node.path / NODE_PUBLIC_KEY).read_text() for node in federation.nodes]
    for node in federation.nodes:
        (node.path / PARTNERS_FILE).write_text("".join(keys))
    federation.nodes = [NodeFolder.load(node.path) for node in federation.nodes]
    federation.start()
    run = deployed(federation, tmp_path, **few)
    assert [row["summed_clients"] for row in rounds(run)] == [3]
    assert bits(run) == bits(local)
    for node in federation.nodes:
        chain = read_chain(node.path / LEDGER)
        assert not chain.broken
        lines = [line for line in chain.lines if line["event"] == "reply"]
        masked = [line["type"] for line in lines if line["masked"]]
        assert masked == list(STAGES)
        assert {x["type"] for x in lines if not x["masked"]} == {HELLO, EVALUATE}
        (words,) = (line["records"] for line in lines if line["type"] == TRAIN)
        (arrays,) = (held for name, held in words.items() if name.endswith("secure-sum"))
        assert set(arrays) == {"head", "body", "complaints"}
