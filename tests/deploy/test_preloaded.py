"""ClientApps forked from a process that has loaded what they need, with a Flower made here.

The made Flower has the program ``flwr-clientapp``, which tells what it finds, and a
SuperExec that starts it as Flower's does: by name, without waiting for it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedsuite.deploy.preloaded import superexec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")

SCRIPT = Path(superexec.__file__)

FLOWER = """
import json, os, sys, threading
import numpy
LOADED_BY = os.getpid()

def flwr_clientapp():
    own = {
        "words": sys.argv, "process": os.getpid(), "parent": os.getppid(),
        "loaded by": LOADED_BY, "drawn": numpy.random.random(),
        "fedsuite": "fedsuite" in sys.modules, "folder": os.getcwd(),
        "path": os.environ["PATH"], "files": len(os.listdir("/proc/self/fd")),
    }
    with open(os.environ["TOLD"], "a") as file:
        file.write(json.dumps(own) + "\\n")
    # The end of a process as Python knows it: threads are waited for, and atexit runs.
    threading.Timer(0.2, lambda: open(os.environ["TOLD"] + ".late", "a").close()).start()
    sys.exit(3)
"""

SUPEREXEC = """#!{python}
import subprocess, sys
for line in sys.stdin:
    subprocess.Popen(["flwr-clientapp", *line.split()], stdin=subprocess.DEVNULL)
"""

FRESH = """#!{python}
import json, os, sys
with open(os.environ["TOLD"], "a") as file:
    file.write(json.dumps({{"words": sys.argv, "fresh": True}}) + "\\n")
"""


class Node:
    """A SuperExec of the made Flower, which starts a ClientApp for each line."""

    def __init__(self, folder: Path) -> None:
        self.told = folder / "told"
        self.process = subprocess.Popen(
            [sys.executable, "-P", SCRIPT, "beside", "flower-superexec"],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(folder / "lib"),
                "TOLD": str(self.told),
            },
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, words: str) -> dict[str, object]:
        """Start a ClientApp and return what it tells."""
        before = len(self._lines())
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        until(lambda: len(self._lines()) > before)
        told: dict[str, object] = json.loads(self._lines()[-1])
        return told

    def _lines(self) -> list[str]:
        return self.told.read_text().splitlines() if self.told.exists() else []


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def is_alive(process: object) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for package in ("flwr", "flwr/supernode", "flwr/supernode/cli", "torch"):
        (tmp_path / "lib" / package).mkdir(parents=True)
        (tmp_path / "lib" / package / "__init__.py").touch()
    (tmp_path / "lib/flwr/supernode/cli/__init__.py").write_text(FLOWER)
    (tmp_path / "bin").mkdir()
    for name, text in {"flower-superexec": SUPEREXEC, "flwr-clientapp": FRESH}.items():
        program = tmp_path / "bin" / name
        program.write_text(text.format(python=sys.executable))
        program.chmod(0o755)
    node = Node(tmp_path)
    yield node
    node.process.kill()
    node.process.wait()


def test_client_apps_are_processes_of_their_own_with_flower_loaded(node: Node) -> None:
    one, two = node.start("--token abc --insecure"), node.start("--token é")
    assert one["words"] == ["flwr-clientapp", "--token", "abc", "--insecure"]
    assert two["words"] == ["flwr-clientapp", "--token", "é"]
    assert one["process"] != two["process"]
    # Both are copies of the one that loaded it, and no children of the SuperExec.
    assert one["loaded by"] == two["loaded by"] == one["parent"] == two["parent"]
    assert one["loaded by"] not in {one["process"], two["process"], node.process.pid}


def test_a_client_app_finds_nothing_that_its_process_would_not_have_had(
    node: Node, tmp_path: Path
) -> None:
    one, two = node.start("a"), node.start("b")
    # The run's own fedsuite is to be imported, and no draw to come twice.
    assert one["fedsuite"] is False
    assert one["drawn"] != two["drawn"]
    assert one["folder"] == str(tmp_path)
    assert str(SCRIPT.parent) not in str(one["path"])
    # Standard input, output and errors, and the folder that is being listed.
    assert one["files"] == two["files"] == 4


def test_a_client_app_ends_as_any_python_does(node: Node) -> None:
    told = node.start("a")
    until(Path(f"{node.told}.late").exists)
    until(lambda: not is_alive(told["process"]))


def test_ended_client_apps_are_taken_note_of(node: Node) -> None:
    first = node.start("a")
    until(lambda: not is_alive(first["process"]))
    node.start("b")
    until(lambda: not Path(f"/proc/{first['process']}").exists())


def test_without_that_process_a_client_app_loads_flower_itself(node: Node) -> None:
    server = node.start("a")["loaded by"]
    assert isinstance(server, int)
    os.kill(server, signal.SIGKILL)
    until(lambda: not is_alive(server))
    assert node.start("--token xyz") == {
        "words": [str(node.told.parent / "bin" / "flwr-clientapp"), "--token", "xyz"],
        "fresh": True,
    }
    node.process.kill()
    assert node.process.stderr is not None
    assert "this ClientApp loads them itself" in node.process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_superexec(node: Node, number: int) -> None:
    server = node.start("a")["loaded by"]
    node.process.send_signal(number)
    node.process.wait()
    until(lambda: not is_alive(server))


def test_who_connects_and_says_nothing_stops_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start("a")
    environment = Path(f"/proc/{node.process.pid}/environ").read_bytes().split(b"\0")
    name = dict(e.partition(b"=")[::2] for e in environment if e)[superexec.LINE.encode()]
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(b"\0" + name)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
    assert node.start("b")["words"] == ["flwr-clientapp", "b"]


# What is heard


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        yield ours, theirs


def told(line: socket.socket, words: bytes) -> None:
    line.sendall(words)
    line.shutdown(socket.SHUT_WR)


def test_words_arrive_as_they_were_sent(pair: tuple[socket.socket, ...]) -> None:
    words = ["--token", "", "a b\n", "\udcff", "é"]
    told(pair[1], b"\0".join(map(os.fsencode, words)))
    assert superexec.hear(pair[0]) == words


@pytest.mark.parametrize("size", [0, (1 << 16) + 1])
def test_nothing_and_too_much_are_no_command_line(
    pair: tuple[socket.socket, ...], size: int
) -> None:
    pair[1].setblocking(True)
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    told(pair[1], b"x" * size)
    assert superexec.hear(pair[0]) is None


def test_who_is_silent_is_given_up(
    pair: tuple[socket.socket, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superexec, "_PATIENCE_S", 0.05)
    pair[1].sendall(b"half")
    assert superexec.hear(pair[0]) is None


def test_other_users_are_not_listened_to(
    pair: tuple[socket.socket, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    told(pair[1], b"--token\0abc")
    assert superexec.hear(pair[0]) is None


def test_a_token_is_not_told_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        name = listener.getsockname()[1:].decode()
        words = ["--token", "abc"]
        asking = threading.Thread(target=superexec._handed_over, args=(words, name))
        asking.start()
        line, _ = listener.accept()
        with line:
            assert line.recv(100) == b""
        asking.join()


# Flower's own program


def test_flowers_program_is_the_next_on_path(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    program = tmp_path / "two" / "flwr-clientapp"
    program.touch(mode=0o755)
    path = os.pathsep.join(map(str, (SCRIPT.parent, tmp_path / "one", program.parent)))
    assert superexec._own_program(path) == str(program)
    with pytest.raises(SystemExit, match="flwr-clientapp is not on PATH: run pip install"):
        superexec._own_program(str(SCRIPT.parent))


def test_what_stands_before_it_can_be_run() -> None:
    assert os.access(SCRIPT.parent / "flwr-clientapp", os.X_OK)


def test_a_superexec_that_is_not_there_is_one_line() -> None:
    command = [sys.executable, "-P", SCRIPT, "beside", "no-such-program"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "no-such-program is not on PATH: run pip install flwr in that environment"
    ]
