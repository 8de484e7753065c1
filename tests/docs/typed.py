"""Pages typed to the letter: the one way in which tests run what a page says.

A :class:`Reader` has what a newcomer has: an environment with fedsuite, a home, an empty
folder. It writes the files and types the lines that a page shows. It can add no file, and
sets no variable that a line of the page does not export.

What is not as on a newcomer's machine, and why:

- :data:`FOR_CI` is set: tests run without a network, side by side, with one font cache.
- ``shorter`` adds options to a line, of :data:`SHORTER` alone: fewer rounds and nodes, no
  drawings, another run's name.
- The environment is made of the tests' own: it finds their packages, fedsuite among them,
  and what the page installs goes into it alone.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.docs.pages import blocks, files

SHORTER = re.compile(
    r"(--engine (ray|deployment)|--num-supernodes \d+|--nodes \d+"
    r"|--set (run-name=[\w-]+|num-rounds=\d+|report=false)"
    r"|--run-config num-server-rounds=\d+|--federation-config num-supernodes=\d+)"
)
"""Options that may be added to a page's line."""

DROPPED = re.compile(r"(COV|FEDSUITE|FLWR|MLFLOW|OMP|PIP|PYTHON|RAY|VIRTUAL_ENV|WANDB)")
"""Beginnings of variables of the tests that a newcomer has not set."""

FOR_CI = {
    "COLUMNS": "200",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "PIP_CHECK_BUILD_DEPENDENCIES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_NO_INDEX": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
}
"""Variables that pages do not name; none has to do with what fedsuite finds or computes."""


class Reader:
    """A newcomer with a page.

    Parameters
    ----------
    page
        Text of the page.
    folder
        Folder without files, for the newcomer's home, environment and work.
    clone
        A clone of the repository to work in, where the page says so, instead of an empty
        folder.
    wheel
        A wheel of fedsuite to install, in place of the tests' own fedsuite.
    """

    def __init__(
        self,
        page: str,
        folder: Path,
        clone: Path | None = None,
        wheel: Path | None = None,
    ) -> None:
        self.lines = console_lines(page)
        self._files = files(page)
        self._programs = [text for kind, text in blocks(page) if kind == "python"]
        self._home, self.folder = folder / "home", clone or folder / "work"
        for path in (self._home, self.folder):
            path.mkdir(exist_ok=True)
        scripts = make_environment(folder / "environment")
        kept = {k: v for k, v in os.environ.items() if not DROPPED.match(k)}
        self._variables = kept | FOR_CI | {
            "HOME": str(self._home),
            # Flower's local SuperLink is the machine's: two readers need two.
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]]),
        }  # fmt: skip
        if wheel is not None:
            self._run(f'pip install --force-reinstall --no-deps "{wheel}"')

    def write_files(self) -> None:
        """Write each file that the page shows."""
        for name, text in self._files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def type(self, line: str, shorter: str = "") -> str:
        """Type a line of the page, and return what is printed.

        What it exports holds for the lines after it. A line that was printed as one to run
        (``run it: LINE``) is the page's, too.
        """
        assert line in self.lines, f"not a line of the page: {line}"
        assert not SHORTER.sub("", shorter).strip(), f"not to be added: {shorter}"
        printed = self._run(f"{line} {shorter}")
        self.lines += re.findall(r"^run it: (.+)$", printed, re.MULTILINE)
        return printed

    def run_program(self, number: int) -> str:
        """Run the page's Python block of this number, and return what is printed."""
        program = self._home / "program.py"
        program.write_text(self._programs[number])
        return self._run(f'python "{program}"')

    def _run(self, command: str) -> str:
        after = self._home / "variables"
        done = subprocess.run(
            ["sh", "-ec", f'{command}\nenv -0 > "{after}"'],
            cwd=self.folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        pairs = after.read_text().split("\0")
        self._variables = dict(pair.split("=", 1) for pair in pairs if pair)
        return done.stdout

    def leave(self) -> None:
        """End what the lines left running, such as Flower's local SuperLink."""
        mine = f"HOME={self._home}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mine in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


def console_lines(page: str) -> list[str]:
    """Return the lines that a page has its reader type."""
    return [
        line
        for kind, text in blocks(page)
        if kind == "console"
        for line in text.splitlines()
    ]


def make_environment(folder: Path) -> Path:
    """Make a virtual environment that finds this one's packages; return its programs."""
    venv.create(folder, symlinks=True)
    here, there = Path(sysconfig.get_path("scripts")), folder / "bin"
    [packages] = folder.glob("lib/*/site-packages")
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "tests_environment.pth").write_text(line)
    for program in here.iterdir():
        copy = there / program.name
        if copy.exists() or program.name.startswith(("python", "activate")):
            continue
        content = program.read_bytes()
        if content.startswith(b"#!"):
            # A program of Python's begins with the interpreter of its environment.
            copy.write_bytes(content.replace(bytes(here) + b"/", bytes(there) + b"/"))
            copy.chmod(0o755)
        else:
            copy.symlink_to(program)
    assert Path(sys.executable).parent == here
    return there


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
