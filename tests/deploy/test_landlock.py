"""What a program can still do behind Landlock and seccomp; without torch or Flower."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fedsuite.deploy.relay import landlock

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in landlock._MACHINES,
    reason="Linux on two kinds of machine",
)

LOOK = """
import json, os, resource, signal, socket, sys, threading
folder, secret, parent = sys.argv[1:]
seen = {}

def tried(name, act):
    try:
        seen[name] = act() or "done"
    except OSError as error:
        seen[name] = os.strerror(error.errno)

def written(path):
    with open(path, "w") as file:
        file.write("row 7")

def fork():
    if not os.fork():
        os._exit(0)

tried("own file", lambda: written(folder + "/own"))
tried("own link", lambda: os.link(secret, folder + "/link"))
tried("own device", lambda: os.mknod(folder + "/fifo", 0o60600, 0))
tried("secret", lambda: open(secret).read())
tried("secret's folder", lambda: os.listdir(os.path.dirname(secret)))
tried("cut", lambda: os.truncate(secret, 0))
tried("mark", lambda: os.setxattr(secret, "user.row", b"7"))
tried("mode", lambda: os.chmod(secret, 0o777))
tried("time", lambda: os.utime(secret, (7, 7)))
tried("processes", lambda: os.listdir("/proc"))
tried("words of others", lambda: open("/proc/%s/cmdline" % parent).read())
tried("words of its own", lambda: open("/proc/self/cmdline").read()[:0])
tried("signal", lambda: os.kill(int(parent), 0))
tried("own signal", lambda: os.kill(os.getpid(), 0))
tried("limits of others", lambda: resource.prlimit(int(parent), resource.RLIMIT_CORE)[:0])
tried("fork", fork)
tried("program", lambda: os.posix_spawn("/bin/true", ["true"], {}))
tried("socket", lambda: socket.socket().close())
tried("named socket", lambda: socket.socket(socket.AF_UNIX).close())
tried("datagrams", lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].close())
tried("pair", lambda: [end.close() for end in socket.socketpair()][:0])
thread = threading.Thread(target=seen.update, args=({"thread": "done"},))
thread.start()
thread.join()
print(json.dumps(seen))
"""

DENIED, NOT_PERMITTED = "Permission denied", "Operation not permitted"


@pytest.mark.parametrize("calls_too", [True, False], ids=["whole", "files alone"])
def test_what_is_left_to_a_program(calls_too: bool, tmp_path: Path) -> None:
    """Without seccomp the rest is open, so each of its refusals is seccomp's."""
    own, secret = tmp_path / "own", tmp_path / "site" / "key"
    own.mkdir()
    secret.parent.mkdir()
    secret.write_text("secret")
    secret.chmod(0o600)
    read = ",".join(["/usr", "/lib", "/lib64", "/bin", sys.base_prefix, "/proc/self"])
    script = Path(landlock.__file__)
    if not calls_too:
        script = tmp_path / "landlock.py"
        text = Path(landlock.__file__).read_text()
        script.write_text(text.replace("    restrict_calls(libc)\n", ""))
    words = [sys.executable, "-I", "-S", str(script), read, str(own), "/dev/null"]
    python = os.path.realpath(sys.executable)
    look = [python, "-I", "-S", "-c", LOOK, own, secret, str(os.getpid())]
    answer = subprocess.run(
        [*words, *map(str, look)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout)
    files = {
        "own file": "done",
        "secret": DENIED,
        "secret's folder": DENIED,
        "processes": DENIED,
        "words of others": DENIED,
        "words of its own": "done",
        "own signal": "done",
        "pair": "done",
        "thread": "done",
    }
    calls = {
        **dict.fromkeys(("cut", "signal", "limits of others", "fork"), NOT_PERMITTED),
        **dict.fromkeys(("program", "socket", "named socket"), NOT_PERMITTED),
        "datagrams": NOT_PERMITTED,
        "mark": "Operation not supported",
        # Done by word alone.
        **dict.fromkeys(("mode", "time"), "done"),
    }
    made = ("own link", "own device")
    assert "done" not in [seen[name] for name in made]
    if calls_too:
        assert seen == files | calls | {name: seen[name] for name in made}
        assert secret.read_text() == "secret"
        assert secret.stat().st_mode & 0o777 == 0o600
        assert secret.stat().st_mtime > 7
    else:
        assert {name: seen[name] for name in files} == files
        open_calls = {name for name in calls if seen[name] == "done"}
        assert open_calls >= {"fork", "signal", "socket", "named socket", "mode", "time"}


def test_a_kernel_without_landlock_is_told(tmp_path: Path) -> None:
    script = tmp_path / "landlock.py"
    text = Path(landlock.__file__).read_text()
    script.write_text(text.replace("= 444,", "= 9999,"))
    answer = subprocess.run(
        [sys.executable, "-I", "-S", str(script), "", "", "", "/bin/true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr == "this kernel has no Landlock\n"
