"""The disk is full from the N-th thing that needs space on; later there is room again."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fedsuite.core.errors import RunError
from fedsuite.results.layout import MANIFEST, read_manifest
from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints
from fedsuite.training.store import FileStore
from tests.faults.disk import FaultyDisk, be_full
from tests.faults.runs import (
    Outcome,
    assert_same,
    go_on,
    in_child,
    sample,
    start,
)
from tests.faults.small_disk import SmallDisk, need_small_disks
from tests.helpers import digits_experiment, run_digits

NAMES = ("fedeba-plus", "scaffold", "fedal")


def start_on_full_disk(name: str, folder: Path, number: int, told: Path) -> None:
    """Start a run on a disk that fills up, and note the error that ends it."""
    with pytest.MonkeyPatch.context() as patch:
        disk = FaultyDisk(folder.parent, number, be_full, lasting=True)
        disk.install(patch)
        try:
            start(name, folder.parent, folder.name)
        except RunError as error:
            patch.undo()
            told.write_text(str(error))
    if not told.exists():
        told.write_text(f"finished after {disk.count}")


@pytest.mark.parametrize("name", NAMES)
def test_full_disk_ends_in_one_line_and_the_run_can_go_on(
    name: str,
    whole_runs: dict[str, Outcome],
    survived: Callable[[], None],
    tmp_path: Path,
) -> None:
    told = tmp_path / "whole.txt"
    assert in_child(partial(start_on_full_disk, name, tmp_path / "0/run", 10**6, told)) == 0
    total = int(told.read_text().removeprefix("finished after "))
    for number in sample(name, total):
        fault = f"{name}-{number}"
        folder, told = tmp_path / fault / "run", tmp_path / f"{fault}.txt"
        assert in_child(partial(start_on_full_disk, name, folder, number, told)) == 0
        if told.read_text().startswith("finished"):
            # Only deletions came after, which need no space.
            assert number > total - 4
        else:
            assert "No space left on device" in told.read_text()
            assert "\n" not in told.read_text()
        for path in list_checkpoints(folder / CHECKPOINTS):
            Checkpoint.load(path)
        assert in_child(partial(go_on, name, folder)) == 0, fault
        assert_same(folder, whole_runs[name], fault)
        survived()


def test_one_process_may_go_on_once_there_is_room(
    whole_runs: dict[str, Outcome], tmp_path: Path
) -> None:
    """The lock is given back though the manifest could not be written."""
    folder = tmp_path / "out" / "run"
    with pytest.MonkeyPatch.context() as patch:
        FaultyDisk(folder.parent, 50, be_full, lasting=True).install(patch)
        with pytest.raises(RunError, match="No space left") as caught:
            start("scaffold", folder.parent, folder.name)
    assert read_manifest(folder)["status"] == "running"
    go_on("scaffold", folder)
    assert_same(folder, whole_runs["scaffold"], caught.value)


def test_a_client_whose_disk_is_full_is_left_out(tmp_path: Path) -> None:
    """Where clients write their own state, as in Ray and real processes."""

    class FullForOne(FileStore):
        def write(self, client_id: int, *rest: object) -> None:  # type: ignore[override]
            with pytest.MonkeyPatch.context() as patch:
                if client_id == 2:
                    root = tmp_path / "state" / "2"
                    FaultyDisk(root, 1, be_full, lasting=True).install(patch)
                super().write(client_id, *rest)  # type: ignore[arg-type]

    store = FullForOne(tmp_path / "state")
    trace = run_digits(digits_experiment(method="scaffold", num_rounds=2), store)  # type: ignore[arg-type]
    for report in trace.reports:
        assert report.train is not None
        [rejection] = report.train.rejections
        assert rejection.client_id == 2
        assert "cannot write" in rejection.reason
        assert "No space left on device" in rejection.reason
        assert [row["client"] for row in report.train.rows] == [0, 1, 3]


def test_a_disk_that_is_full_in_earnest(
    whole_runs: dict[str, Outcome], survived: Callable[[], None], tmp_path: Path
) -> None:
    need_small_disks(tmp_path)

    def run_out_and_go_on(pages: int, folder: Path) -> None:
        disk = SmallDisk(folder.parent, 4096 * pages)
        with pytest.raises(RunError, match="No space left on device") as caught:
            start("scaffold", folder.parent, folder.name)
        assert "\n" not in str(caught.value)
        begun = (folder / MANIFEST).exists()
        assert begun == (pages > 1)
        for path in list_checkpoints(folder / CHECKPOINTS):
            Checkpoint.load(path)
        disk.grow(2**24)
        go_on("scaffold", folder)
        assert_same(folder, whole_runs["scaffold"], f"{pages} pages")

    for pages in (1, 2, 8, 12, 16):
        (tmp_path / str(pages)).mkdir()
        folder = tmp_path / str(pages) / "run"
        assert in_child(partial(run_out_and_go_on, pages, folder)) == 0, f"{pages} pages"
        survived()
