"""The SuperLink of commands is killed, or its disk is full: what is told, what goes on.

All of it takes minutes, since Flower notices a death by missing heartbeats.
"""

import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import tomli_w

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.processes import Program, World
from fedsuite.results.reader import load_run
from tests.deploy.accidents import FEDAKD, descendants, final_bits, undisturbed
from tests.deploy.test_links import rejected
from tests.engines.tiny_app import processes_of
from tests.faults.runs import in_child
from tests.faults.small_disk import SmallDisk, need_small_disks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("FEDSUITE_FAULTS") != "all", reason="minutes: `make faults` runs it"
    ),
]

DISK_BYTES = 64 * 2**20
PATIENCE_S = 900


class Operated:
    """The commands that the operators of a server and of two sites type.

    ``folder`` is new; ``disk`` gets the SuperLink's folder.
    """

    def __init__(self, world: World, folder: Path, disk: Path) -> None:
        self._world, self._folder = world, folder
        self._typed = 0
        folder.mkdir()
        made = LocalFederation(world, folder / "federation", 2)
        self.superlink = disk / "superlink"
        shutil.copytree(made.superlink.path, self.superlink)
        self.link = self.start_superlink()
        for node in made.nodes:
            port = world.reserve_port()
            site = self.type("deploy", "supernode", node.path, "--runtime-port", port)
            wait_until(partial(says, site, "SuperNode ID"))

    def start_superlink(self) -> Program:
        """Start the SuperLink's command, and wait until nodes may join."""
        link = self.type("deploy", "superlink", self.superlink)
        wait_until(partial(says, link, "nodes may join"))
        return link

    def run(self, run: Path, **changes: Value) -> Program:
        """Start a run with its results in a folder, and wait until two rounds are kept."""
        file = self._folder / "e.toml"
        values: dict[str, Value] = {**FEDAKD, "report": False, **changes}
        file.write_text(tomli_w.dumps({**values, "output-dir": str(run.parent)}))
        driver = self.type("deploy", "run", self.superlink, file)
        wait_until((run / "checkpoints" / "round-000002.safetensors").exists)
        return driver

    def type(self, *words: object) -> Program:
        """Start a command of this fedsuite, with a temporary folder of its own."""
        self._typed += 1
        own = self._folder / f"{self._typed}"
        own.mkdir()
        places = {"PYTHONPATH": Path(fedsuite.__file__).parents[1], "TMPDIR": own}
        self._world.environment.update({k: str(v) for k, v in places.items()})
        command = [sys.executable, "-m", "fedsuite", *map(str, words)]
        return self._world.start(f"typed-{self._typed}", command)

    def failed(self, driver: Program) -> str:
        """Return the one line of a command that failed and left no process."""
        assert driver.process.wait(timeout=400) == 1, driver.text
        *_, line = driver.text.splitlines()
        own = self._folder / driver.log.stem.rpartition("-")[2]
        wait_until(lambda: not processes_of(str(own)))
        return line

    def resume(self, line: str) -> Program:
        """Type the command of a line's last pair of backticks; wait until it has ended."""
        words = shlex.split(line.split("`")[-2])
        assert words[:2] == ["fedsuite", "resume"]
        resumed = self.type(*words[1:])
        assert resumed.process.wait(timeout=400) == 0, resumed.text
        return resumed


def says(program: Program, words: str) -> bool:
    program.check_alive()
    return words in program.text


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 400
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def fill(disk: Path) -> Path:
    """Fill a disk to its last byte; return the file that does."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(65536)):
            pass
    assert shutil.disk_usage(disk).free == 0
    return ballast


@pytest.mark.parametrize("results", ["there", "elsewhere"])
def test_the_disk_under_the_superlink_is_full(results: str, tmp_path: Path) -> None:
    """With results elsewhere it is Flower's database that cannot be written."""
    need_small_disks(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    expected = final_bits(undisturbed(tmp_path))

    def fill_and_free() -> None:
        SmallDisk(disk, DISK_BYTES)
        with World("fedsuite") as world:
            operated = Operated(world, tmp_path / "typed", disk)
            runs = operated.superlink / "runs" if results == "there" else tmp_path / "runs"
            # Replies that a full disk loses are waited for so long.
            driver = operated.run(runs / "run", **{"round-timeout": 90.0})
            ballast = fill(disk)
            wait_until(partial(says, driver, f"{operated.superlink} is full: free some\n"))
            line = operated.failed(driver)
            told = (
                f"fedsuite: error: the disk of {operated.superlink} is full (0.0 MB left)"
            )
            assert line.startswith(f"{told}: free some, then `fedsuite resume")
            ballast.unlink()
            operated.resume(line)
            run = load_run(runs / "run")
            assert run.manifest["status"] == "finished"
            assert (final_bits(run) == expected) == (rejected(run) == [])

    assert in_child(fill_and_free, PATIENCE_S) == 0


def test_the_superlinks_command_is_killed(tmp_path: Path) -> None:
    """Its programs end with it; the run goes on by the commands that the message names."""
    with World("fedsuite") as world:
        operated = Operated(world, tmp_path / "typed", tmp_path)
        run = tmp_path / "runs" / "run"
        driver = operated.run(run)
        operated.link.process.kill()
        operated.link.process.wait()
        line = operated.failed(driver)
        start = shlex.join(["fedsuite", "deploy", "superlink", str(operated.superlink)])
        told = f"fedsuite: error: the SuperLink stopped answering: `{start}` starts it"
        assert line.startswith(told)
        operated.start_superlink()
        assert "after round 2" in operated.resume(line).text
        assert final_bits(load_run(run)) == final_bits(undisturbed(tmp_path))


def test_the_program_below_the_superlinks_command_is_killed(tmp_path: Path) -> None:
    """The command starts it again, and the run is followed to its end."""
    with World("fedsuite") as world:
        operated = Operated(world, tmp_path / "typed", tmp_path)
        run = tmp_path / "runs" / "run"
        driver = operated.run(run)
        (program,) = [
            pid
            for pid in descendants(operated.link.process.pid)
            if b"flower-superlink" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(program, signal.SIGKILL)
        assert driver.process.wait(timeout=400) == 0, driver.text
        assert "SuperLink ended (SIGKILL)" in operated.link.text
        assert final_bits(load_run(run)) == final_bits(undisturbed(tmp_path))
