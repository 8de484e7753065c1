"""Seeds that once failed, a few more, and whether the checker sees what is planted."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.disasters.checker import problems
from tests.disasters.judge import CORPUS, Lot, Progress, judge, read_plan
from tests.disasters.planted import BUGS, TABLE, Bug, planted, seeds_needed
from tests.disasters.play import play
from tests.disasters.remembered import forget
from tests.disasters.world import TARGETS, Plan

_OF_A_RUN = 3
"""Seeds that `make test` plays beside the corpus."""


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda p: p.stem)
def test_what_once_failed_holds(path: Path) -> None:
    assert not judge(read_plan(path)).problems


@pytest.mark.parametrize("seed", range(_OF_A_RUN))
def test_a_seed_holds(seed: int) -> None:
    assert not judge(Plan.drawn(seed)).problems


def test_a_seed_plays_twice_alike() -> None:
    plan = Plan.drawn(7)
    first, second = judge(plan), judge(plan)
    assert first == second
    assert first.fired


def test_a_stopped_night_goes_on_from_its_whole_lots_of_this_code(tmp_path: Path) -> None:
    path = tmp_path / "disasters.jsonl"
    progress = Progress(path)
    lots = [Lot(n, 100, 30, {"kill end:run": 2}, {}, 9.0, progress.code) for n in (0, 100)]
    for lot in [*lots, replace(lots[0], first=200, code="other")]:
        progress.add(lot)
    with path.open("a") as file:
        file.write('{"first": 300, "see')
    assert Progress(path).lots == lots
    # Half a line does not spoil the next one.
    Progress(path).add(replace(lots[0], first=300))
    assert [lot.first for lot in Progress(path).lots] == [0, 100, 300]


def test_what_is_remembered_is_what_is_worked_out() -> None:
    plan = Plan(5, "scaffold", {"checkpoint-every": 1}, faults={"send:train 1.7": "kill"})
    forget()
    first = judge(plan)
    known = judge(plan)
    assert first == known
    assert first.compared


def test_a_seed_plays_alike_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary file's name has the number of its process."""
    verdicts = []
    for number in (7, 123456):
        monkeypatch.setattr(os, "getpid", lambda number=number: number)
        verdicts.append(judge(Plan.drawn(114)))
    assert verdicts[0] == verdicts[1]
    assert "power" in verdicts[0].fired.values()


_UNSEEN = {
    "rounds": {
        *("bytes_down", "bytes_down_train", "bytes_up", "effective_clients"),
        *("seconds", "cpu_seconds", "seconds_evaluate", "evaluation_cpu_seconds"),
    },
    "clients": {"clipped", "norm_ratio", "update_norm", "weight"},
}
"""Columns that the checker does not work out anew."""


def test_the_checker_sees_a_digit_that_changed_in_a_table(tmp_path: Path) -> None:
    """No hash guards the tables; what is not named here is worked out from the replies."""
    played = play(Plan(3, "fedavg", faults={}), tmp_path)
    assert not problems(played)
    unseen: dict[str, set[str]] = {name: set() for name in _UNSEEN}
    for table in _UNSEEN:
        path = played.folder / f"{table}.jsonl"
        whole = path.read_text()
        lines = whole.splitlines()
        for number in (1, -1):
            row = json.loads(lines[number])
            for name, value in row.items():
                other = value + 1 if isinstance(value, int | float) else f"{value}?"
                changed = [*lines]
                changed[number] = json.dumps(row | {name: other})
                path.write_text("\n".join(changed) + "\n")
                if not problems(played):
                    unseen[table].add(name)
        path.write_text(whole)
    assert unseen == _UNSEEN


def test_seeds_in_a_row_aim_at_every_kind_of_fault_and_place() -> None:
    aimed = {Plan.drawn(seed).aims[0][:2] for seed in range(len(TARGETS))}
    assert aimed == set(TARGETS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    with planted(bug):
        pass


def test_the_table_has_each_planted_bug_and_the_seeds_that_it_took() -> None:
    """0 is a bug that no seed has shown yet."""
    with TABLE.open() as file:
        seeds = {row["bug"]: int(row["seeds"]) for row in csv.DictReader(file)}
    assert list(seeds) == [bug.name for bug in BUGS]
    assert sum(map(bool, seeds.values())) >= 30


@pytest.mark.nightly
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_seen(bug: Bug) -> None:
    """Of those that the table says were seen; a world that grew may need more seeds."""
    with TABLE.open() as file:
        known = {row["bug"]: int(row["seeds"]) for row in csv.DictReader(file)}
    if not known[bug.name]:
        pytest.skip("no seed has shown it yet")
    seeds, _ = seeds_needed(bug, 2 * known[bug.name] + 50)
    assert seeds
