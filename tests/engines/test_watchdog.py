"""The watchdog: a process that is killed leaves no programs and no folder behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsuite.engines import watchdog
from fedsuite.engines.processes import World
from fedsuite.engines.watchdog import MARKER, mark, marked
from tests.engines.tiny_app import processes_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"

OF_A_WORLD = f"""
import sys, time
from fedsuite.engines.processes import World
with World() as world:
    world.start("one", [sys.executable, "-c", "import time; time.sleep(60)"])
    world.start("two", [sys.executable, "-c", "import os; os.fork(); os.setsid(); {DEAF}"])
    print(world.folder, flush=True)
    time.sleep(60)
"""

OF_A_WATCHER = """
import os, sys, time
from pathlib import Path
from fedsuite.deploy.programs import _supervised
with _supervised(Path(sys.argv[1]), dict(os.environ)) as programs:
    programs.start("one", [sys.executable, "-c", "import time; time.sleep(60)"])
    print(sys.argv[1], flush=True)
    time.sleep(60)
"""


def killed(code: str, folder: Path) -> str:
    """Run code that prints a folder, and kill it; return the folder once it is empty."""
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    place = driver.stdout.readline().strip()
    assert processes_of(place)
    driver.kill()
    driver.communicate()
    wait_until(lambda: not processes_of(place))
    return place


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_driver_leaves_no_programs_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those that left their group and hear no SIGTERM."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = Path(killed(OF_A_WORLD, tmp_path))
    wait_until(lambda: not folder.exists())


def test_a_killed_watcher_leaves_no_programs_and_its_folder(tmp_path: Path) -> None:
    killed(OF_A_WATCHER, tmp_path)
    assert (tmp_path / "empty").exists()


def test_a_world_inside_another_has_the_marks_of_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MARKER, "outer-world")
    with World() as world:
        program = world.start("p", [sys.executable, "-c", "import time; time.sleep(60)"])
        wait_until(lambda: program.process.pid in marked("outer-world"))
    monkeypatch.delenv(MARKER)
    assert mark("alone") == {MARKER: "alone"}


def test_without_proc_groups_are_ended() -> None:
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], start_new_session=True)
    time.sleep(0.5)
    for number in (signal.SIGTERM, signal.SIGKILL):
        # A child of this process stays a zombie, and its group with it, until it is
        # waited for.
        watchdog.end(
            lambda: {deaf.pid} if deaf.poll() is None else set(), os.killpg, number, 0.3
        )
    assert deaf.wait() == -signal.SIGKILL
    assert not watchdog._is_group(deaf.pid)
