"""Programs that stand in for Flower's, started by their path: no package is imported.

    python -I -S stand_ins.py NAME FOLDER

is a program under a watcher; :func:`app` is a ClientApp under a relay. What each one does
at its N-th start stands in ``FOLDER/plan.json``, by place; what happened in
``FOLDER/events``, a line each.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT, "hup": signal.SIGHUP}
"""By the words of ``watcher-term`` and its like: after these a watcher ends in order."""


def note(folder: Path, *words: object) -> None:
    """Append an event, whole."""
    with (folder / "events").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def events(folder: Path) -> list[list[str]]:
    """Return the events so far, each as its words."""
    path = folder / "events"
    return [line.split(" ") for line in path.read_text().splitlines()]


def fault(folder: Path, place: str) -> str:
    """Return what the plan has for a place, the first time it is met."""
    kind = str(json.loads((folder / "plan.json").read_text()).get(place, ""))
    if not kind or ["fired", place, kind] in events(folder):
        return ""
    note(folder, "fired", place, kind)
    return kind


def stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state on: T of a stopped one, or Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z"]


def words_of(pid: str) -> str:
    """Return the command of a process; empty of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def lives(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    return stat(pid)[0] != "Z"


def program(name: str, folder: Path) -> None:
    """Be a program that a watcher has started."""
    starts = [int(e[2]) for e in events(folder) if e[:2] == ["start", name]]
    if any(map(lives, starts)):
        note(folder, "double", name)
    note(folder, "start", name, os.getpid())
    kind = fault(folder, f"{name} {len(starts) + 1}") or fault(folder, f"{name} always")
    if json.loads((folder / "plan.json").read_text()).get(f"{name} always"):
        kind = kind or "exit"
    watcher = os.getppid()
    what, _, how = kind.partition("-")
    if what == "exit":
        sys.exit(3)
    if what == "chatty":
        print("\n".join(f"a line of {name}" for _ in range(50)))
        sys.exit(1)
    if what in ("full", "gone"):
        if what == "full":
            (folder / "full").touch()
        else:
            shutil.rmtree(os.getcwd())
        sys.exit(4)
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if what == "child":
        words = [sys.executable, "-I", "-S", __file__, "child", str(folder)]
        subprocess.Popen(words, start_new_session=True)
    if what == "litter":
        (Path.cwd() / "litter" / "more").mkdir(parents=True, exist_ok=True)
        (Path.cwd() / "litter" / "more" / "file").write_text("x")
        (Path.cwd() / "litter").chmod(0o500)
    if what in ("kill", "stop"):
        other = [int(e[2]) for e in events(folder) if e[0] == "start" and e[1] != name]
        pids = {"other": other[-1:], "itself": [os.getpid()]}.get(how, [])
        if how == "watchdog":
            children = Path(f"/proc/{watcher}/task/{watcher}/children").read_text().split()
            pids = [int(p) for p in children if "watchdog" in words_of(p)]
        note(folder, "settled", name, os.getpid())
        for pid in pids:
            os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    note(folder, "settled", name, os.getpid())
    if what == "watcher":
        if how == "pause":
            os.kill(watcher, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(watcher, signal.SIGCONT)
        for word in how.split("-"):
            if word in SIGNALS or word == "kill":
                os.kill(watcher, SIGNALS.get(word, signal.SIGKILL))
    while True:
        signal.pause()


def app() -> None:
    """Be a ClientApp: make the calls of ``FOLDER/calls.json``, and end."""
    folder = Path(os.environ["FEDSUITE_PLAY"])
    note(folder, "app", os.getpid())
    calls = json.loads((folder / "calls.json").read_text())
    for path, body in calls:
        data = bytes.fromhex(body)
        # Its relay may be killed, which ends it a moment later.
        with suppress(OSError), socket.create_connection(("127.0.0.1", 9), 60) as line:
            head = f"POST /v1/runtime/{path} HTTP/1.1\r\ncontent-length: {len(data)}\r\n"
            line.sendall(f"{head}connection: close\r\n\r\n".encode() + data)
            while line.recv(65536):
                pass


if __name__ == "__main__":
    if sys.argv[1] == "child":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(Path(sys.argv[2]), "child", "of-somebody", os.getpid())
        signal.pause()
    program(sys.argv[1], Path(sys.argv[2]))
