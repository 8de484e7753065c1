"""The process dies at the N-th thing it asks of its disk, for every N."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints
from tests.faults.disk import FaultyDisk, die, lose_power
from tests.faults.runs import (
    EXPERIMENTS,
    KILLED,
    Outcome,
    assert_same,
    go_on,
    in_child,
    sample,
    start,
)

DEATHS = {"killed": die, "power-lost": lose_power}


def requests_of(name: str, output: Path, report: Path) -> tuple[int, int]:
    """Return how many requests a whole run makes of its disk.

    The second number is that of the first one after the first checkpoint.
    """
    disk = FaultyDisk(output, 0, die)
    save, after = Checkpoint.save, []

    def noted(checkpoint: Checkpoint, checkpoints: Path) -> Path:
        path = save(checkpoint, checkpoints)
        after.append(disk.count + 1)
        return path

    def count() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoint, "save", noted)
            disk.install(patch)
            start(name, output, "counted")
        report.write_text(f"{disk.count} {after[0]}")

    assert in_child(count) == 0
    total, first = report.read_text().split()
    return int(total), int(first)


def start_and_die(name: str, folder: Path, number: int, death: str, promises: Path) -> None:
    """Start a run whose process dies at a request to its disk.

    Whatever checkpoint was said to be written is noted in the file ``promises``.
    """
    save = Checkpoint.save

    def noted(checkpoint: Checkpoint, checkpoints: Path) -> Path:
        path = save(checkpoint, checkpoints)
        promises.write_text(str(checkpoint.server_round))
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", noted)
        FaultyDisk(folder.parent, number, DEATHS[death]).install(patch)
        start(name, folder.parent, folder.name)


def kept_round(folder: Path) -> int:
    """Return the round of the newest whole checkpoint."""
    paths = list_checkpoints(folder / CHECKPOINTS)
    return Checkpoint.load(paths[-1]).server_round if paths else 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_dead_at_a_write_and_resumed_equals_uninterrupted(
    name: str,
    whole_runs: dict[str, Outcome],
    survived: Callable[[], None],
    tmp_path: Path,
) -> None:
    total, first = requests_of(name, tmp_path / "counted", tmp_path / "count")
    assert total > first > 20
    for death, number in product(DEATHS, sorted({*sample(name, total), first})):
        fault = f"{name}-{death}-{number}"
        folder, promises = tmp_path / fault / "run", tmp_path / f"{fault}.txt"
        promises.write_text("0")
        die_at = partial(start_and_die, name, folder, number, death, promises)
        assert in_child(die_at) == KILLED, fault
        assert kept_round(folder) >= int(promises.read_text()), f"{fault}: lost"
        assert in_child(partial(go_on, name, folder)) == 0, fault
        assert_same(folder, whole_runs[name], fault)
        survived()
