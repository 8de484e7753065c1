"""Who watches the programs: what has died is started again, but not for ever."""

import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy import programs
from fedsuite.deploy.folders import SuperLinkFolder, init_federation

SHORT = [sys.executable, "-c", "raise SystemExit(3)"]
LONG = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_RESTART_PAUSES_S", (0.0,) * 5)
    monkeypatch.setattr(programs, "_LOOK_EVERY_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_what_ends_again_and_again_is_given_up(tmp_path: Path) -> None:
    lines: list[str] = []
    with (
        pytest.raises(RunError, match=r"Short ended \(code 3\).*6th time"),
        programs._supervised(tmp_path, {}) as running,
    ):
        other = running.start("Long", LONG)
        running.start("Short", SHORT)
        running.watch(lines.append)
    assert len(lines) == 5
    assert all("Short ended (code 3)" in line for line in lines)
    # The other was left alone until the end, and ends then.
    assert other.process.poll() == -signal.SIGTERM


def test_restarts_outlast_the_minute_in_which_a_dead_node_is_taken_for_alive() -> None:
    assert sum(programs._RESTART_PAUSES_S) > 2 * 60


@pytest.mark.usefixtures("quick")
def test_what_ran_for_long_is_started_again_however_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_FORGIVEN_AFTER_S", -1.0)
    lines: list[str] = []

    def until_the_ninth(line: str) -> None:
        lines.append(line)
        if len(lines) == 9:
            raise KeyboardInterrupt

    with programs._supervised(tmp_path, {}) as running:
        running.start("Short", SHORT)
        running.watch(until_the_ninth)
    assert len(lines) == 9


@pytest.mark.usefixtures("quick")
def test_on_a_full_disk_nothing_is_started_and_nothing_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([True] * 40 + [False])
    monkeypatch.setattr(programs, "is_full", lambda _: next(looks, False))
    lines: list[str] = []
    with (
        pytest.raises(RunError, match="6th time"),
        programs._supervised(tmp_path, {}) as running,
    ):
        running.start("Short", SHORT)
        running.watch(lines.append)
    assert [f"the disk of {tmp_path} is full: free some" in line for line in lines] == [
        True,
        *[False] * 5,
    ]


@pytest.mark.usefixtures("quick")
def test_what_dies_before_it_is_ready_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match="Short ended with code 3: its last lines say why"),
        programs._supervised(tmp_path, {}) as running,
    ):
        running.start("Short", SHORT).wait_until(lambda: False)


@pytest.mark.usefixtures("quick")
def test_a_working_folder_that_somebody_has_cleaned_away_is_made_again(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    taken = "import os; os.rmdir(os.getcwd())"
    with (
        pytest.raises(RunError, match="6th time"),
        programs._supervised(tmp_path, {}) as running,
    ):
        running.start("Short", [sys.executable, "-I", "-S", "-c", taken])
        running.watch(lines.append)


def test_what_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("in the way")
    running = programs._Restarted.__new__(programs._Restarted)
    running.neutral, running._folder = tmp_path / "empty", None
    with pytest.raises(RunError, match=r"Short cannot be started: .*File exists"):
        running.start("Short", SHORT)


@pytest.mark.usefixtures("quick")
def test_stopping_is_no_failure_and_leaves_nothing(tmp_path: Path) -> None:
    with programs._supervised(tmp_path, {}) as running:
        program = running.start("Long", LONG)
        started = time.monotonic()
        raise KeyboardInterrupt
    assert program.process.poll() == -signal.SIGTERM
    assert time.monotonic() - started < 20


def test_a_stopped_superlink_leaves_one_file_and_a_newer_one_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a"])
    folder = SuperLinkFolder.load(tmp_path / "fed" / "superlink")
    database = folder.path / programs.DATABASE
    nobody = programs.Registered([], [])
    monkeypatch.setattr(programs, "superlink_command", lambda *_, **__: LONG)
    monkeypatch.setattr(programs, "superlink_helper_command", lambda *_: LONG)
    monkeypatch.setattr(programs, "is_healthy", lambda _: True)
    monkeypatch.setattr(programs, "register_nodes", lambda _: nobody)

    def stop(line: str) -> None:
        if line.startswith("SuperLink on"):
            with closing(sqlite3.connect(tmp_path / "open.db")) as opened:
                opened.execute("pragma journal_mode = wal")
                opened.execute("create table alembic_version (version_num text)")
                opened.execute("insert into alembic_version values ('ffff00000000')")
                opened.commit()
                for end in ("", "-wal"):
                    shutil.copy(tmp_path / f"open.db{end}", f"{database}{end}")
            raise KeyboardInterrupt

    programs.run_superlink(folder, stop)
    assert [path.name for path in folder.path.glob("state.db*")] == ["state.db"]
    with pytest.raises(ConfigError, match=r"state\.db is of a newer Flower than"):
        programs.run_superlink(folder, stop)
