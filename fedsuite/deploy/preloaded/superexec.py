"""A SuperExec whose ClientApps start with torch and Flower loaded.

    python -P superexec.py beside flower-superexec --insecure --runtime-api-address ...

Flower starts a new Python per message, and a short answer spends most of its processor time
on ``import torch, flwr``. Here one process imports both once, and forks per message. Every
ClientApp is still a process with its own memory, which runs Flower's own program and ends
with the message.

``beside`` starts the forking process and becomes the SuperExec. The SuperExec finds
``flwr-clientapp`` of this folder before Flower's. This ``flwr-clientapp`` calls ``begin``,
which asks for a fork, and becomes Flower's own program if nobody answers.

This file runs by its path and imports nothing of fedsuite, because ClientApps must import
the code that a run brings to the node. Linux only.
"""

# ``begin`` is a fresh Python per message, so it imports only what it needs.
import os
import select
import socket
import struct
import sys
from contextlib import suppress

PRELOADED = (
    "flwr.supernode.cli",
    "httpcore",
    "torch",
    "numpy.random",
    "safetensors.numpy",
    "filelock",
)
"""Modules that a ClientApp loads and a run does not bring."""

LINE = "FEDSUITE_PRELOADED"
"""Environment variable with the name of the forking process's socket."""

PYTHON = "FEDSUITE_PYTHON"
"""Environment variable with the Python that runs ``begin``."""

_CLIENT_APP = "flwr-clientapp"
_BACKLOG = 64
_PATIENCE_S = 5.0
_MOST_BYTES = 1 << 16
"""Longest command line, well above Flower's."""


def beside(command: list[str]) -> None:
    """Become a SuperExec, by its command line, beside a process that forks ClientApps."""
    from shutil import which

    program = which(command[0])
    if program is None:
        sys.exit(f"{command[0]} is not on PATH: run pip install flwr in that environment")
    listener = socket.socket(socket.AF_UNIX)
    # Without a given name the system chooses one, and there is no file to tidy up.
    listener.bind("")
    listener.listen(_BACKLOG)
    ended, lives = os.pipe()
    if os.fork() == 0:
        os.close(lives)
        words = serve(listener, ended)
        if words is not None:
            run_client_app(words)
        return
    os.set_inheritable(lives, True)
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath)]),
        PYTHON: sys.executable,
        LINE: listener.getsockname()[1:].decode(),
    }
    os.execve(program, [program, *command[1:]], environment)


def serve(listener: socket.socket, ended: int) -> list[str] | None:
    """Fork per received command line, until the SuperExec has ended and closed a pipe.

    Returns
    -------
    list of str or None
        The command line to run in a forked process; None in this process, at the end.
    """
    preload()
    awaited: list[socket.socket | int] = [listener, ended]
    while True:
        ready, _, _ = select.select(awaited, [], [])
        if ended in ready:
            return None
        line, _ = listener.accept()
        with line:
            words = hear(line)
            if words is None:
                continue
            if os.fork() == 0:
                listener.close()
                os.close(ended)
                return words
            with suppress(OSError):
                line.sendall(b"!")
        bury()


def preload() -> None:
    """Import the ClientApps' modules, and freeze them for the garbage collector."""
    import gc
    import importlib

    for module in PRELOADED:
        # A ClientApp itself reports missing Flower; an app may not need the rest.
        with suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    # Collections in the copies would touch, and so copy, the memory that they share.
    gc.freeze()


def hear(line: socket.socket) -> list[str] | None:
    """Return a received command line, None for an invalid one."""
    line.settimeout(_PATIENCE_S)
    received = b""
    try:
        if _peer_user(line) != os.getuid():
            return None
        while part := line.recv(_MOST_BYTES):
            received += part
            if len(received) > _MOST_BYTES:
                return None
    except OSError:
        return None
    return [os.fsdecode(word) for word in received.split(b"\0")] if received else None


def bury() -> None:
    """Reap the ClientApps that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_client_app(words: list[str]) -> None:
    """Run Flower's program with a command line, and end the process."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # NumPy does not notice a fork, so every ClientApp would draw the same numbers.
        numpy.random.seed()
    sys.argv = [_CLIENT_APP, *words]
    from flwr.supernode.cli import flwr_clientapp

    flwr_clientapp()


def begin(words: list[str]) -> None:
    """Have a ClientApp forked for a command line, or else become Flower's own program."""
    if _handed_over(words, os.environ.get(LINE, "")):
        return
    print(
        "fedsuite: the process with torch and Flower loaded does not answer, so this "
        "ClientApp loads them itself; start the SuperNode again to have it back",
        file=sys.stderr,
        flush=True,
    )
    program = _own_program(os.environ.get("PATH", os.defpath))
    os.execv(program, [program, *words])


def _handed_over(words: list[str], name: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(f"\0{name}")
            # The words hold a token, and anybody could take a freed socket name.
            if _peer_user(line) != os.getuid():
                return False
            line.sendall(b"\0".join(map(os.fsencode, words)))
            line.shutdown(socket.SHUT_WR)
            return bool(line.recv(1))
    except OSError:
        return False


def _peer_user(line: socket.socket) -> int:
    """Return the number of the user at the other end of a Unix socket."""
    peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", peer)[1]
    return user


def _own_program(path: str) -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in path.split(os.pathsep):
        program = os.path.join(folder, _CLIENT_APP)
        if os.access(program, os.X_OK) and os.path.abspath(folder) != here:
            return program
    sys.exit(f"{_CLIENT_APP} is not on PATH: run pip install flwr in that environment")


if __name__ == "__main__":
    {"beside": beside, "begin": begin}[sys.argv[1]](sys.argv[2:])
