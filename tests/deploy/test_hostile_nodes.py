"""A real node that sends another bad reply each round: none counts, the run goes on."""

import os
import shutil
from pathlib import Path

import pytest

import fedsuite
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.processes import World
from fedsuite.engines.staging import stage_app
from fedsuite.results.reader import Run, load_run
from tests.deploy import hostile_mod
from tests.deploy.accidents import values

ROUNDS = len(hostile_mod.TAMPERINGS)
LONGEST = 300 + len("train.local_phase: ")
"""Characters of a reason, after the name of an exchange within a round."""


def hostile_package(folder: Path) -> Path:
    """Write a copy of fedsuite whose second node means harm."""
    copy = folder / "hostile" / "fedsuite"
    shutil.copytree(Path(fedsuite.__file__).parent, copy)
    shutil.copy(Path(hostile_mod.__file__), copy / "hostile_mod.py")
    file = copy / "running" / "node_app.py"
    whole = file.read_text()
    line = "from fedsuite.workarounds.packed import packing_mod\n"
    # Innermost: what is tampered with travels as an honest reply does.
    assert line in whole and "packing_mod]" in whole
    changed = whole.replace("packing_mod]", "packing_mod, tamper]")
    file.write_text(
        changed.replace(line, line + "from fedsuite.hostile_mod import tamper\n")
    )
    return copy


def test_the_package_of_a_hostile_node_can_be_written(tmp_path: Path) -> None:
    """A rare test stands on it."""
    hostile_package(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("FEDSUITE_FAULTS") != "all", reason="minutes: `make faults` runs it"
)
def test_no_reply_of_a_hostile_node_counts(tmp_path: Path) -> None:
    changes = {
        "method": "fedavg",
        "model": "linear",
        "num_clients": 2,
        "num_rounds": ROUNDS + 1,
        "evaluate_every": ROUNDS + 1,
        "round_timeout": 60.0,
    }
    config = values(tmp_path, **changes)
    with World("fedsuite") as world:
        federation = LocalFederation(world, tmp_path / "federation", 2)
        federation.start()
        package = hostile_package(tmp_path)
        app = stage_app(tmp_path / "app", config, package=package)
        federation.run_app(app, lambda line: None)
    run = load_run(tmp_path / "runs" / "run")
    assert run.manifest["status"] == "finished"
    check_reasons(run)
    trained = [(r["round"], r["client"]) for r in run.clients() if r["phase"] == "train"]
    assert trained == [
        *((k, 0) for k in range(1, ROUNDS + 1)),
        (ROUNDS + 1, 0),
        (ROUNDS + 1, 1),
    ]


def check_reasons(run: Run) -> None:
    events = [e for e in run.events() if e["kind"] == "rejected-reply"]
    by_round = {e["round"]: e["reason"] for e in events}
    assert sorted(by_round) == list(range(1, ROUNDS + 1))
    assert len(events) == ROUNDS
    for server_round, (_, words) in enumerate(hostile_mod.TAMPERINGS, start=1):
        reason = by_round[server_round]
        assert words in reason, (server_round, reason)
        assert reason.isprintable() and len(reason) <= LONGEST
