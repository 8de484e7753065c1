"""A SuperExec whose ClientApps begin with torch and Flower loaded.

    python -P superexec.py beside flower-superexec --insecure --runtime-api-address ...

Flower starts a new Python for each message, and a short answer spends most of its
processor time on ``import torch, flwr``. Here one process imports both, once, and is
forked for each message: every ClientApp is a process of its own as before, with memory of
its own, that runs Flower's own program and ends with the message.

``beside`` starts that process and becomes the SuperExec, which finds ``flwr-clientapp`` of
this folder before Flower's. That calls ``begin``, which asks for a fork, and becomes
Flower's own program if nobody answers.

This file runs by its path and imports nothing of fedsuite: a run brings its own code to
the node, and that is what its ClientApps are to import. Linux only.
"""

# ``begin`` is a fresh Python for each message: what it does not need is imported later.
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
"""What a ClientApp of Flower and of fedsuite loads that a run does not bring."""

LINE = "FEDSUITE_PRELOADED"
"""Environment variable with the name of the socket at which to ask for a fork."""

PYTHON = "FEDSUITE_PYTHON"
"""Environment variable with the Python that runs ``begin``."""

_CLIENT_APP = "flwr-clientapp"
_BACKLOG = 64
_PATIENCE_S = 5.0
_MOST_BYTES = 1 << 16
"""More than a command line of Flower's holds."""


def beside(command: list[str]) -> None:
    """Become a SuperExec, beside a process that forks its ClientApps.

    Parameters
    ----------
    command
        The SuperExec's command line.
    """
    from shutil import which

    program = which(command[0])
    if program is None:
        sys.exit(f"{command[0]} is not on PATH: run pip install flwr in that environment")
    listener = socket.socket(socket.AF_UNIX)
    # No name given: the system chooses one, and there is no file to tidy up.
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
    """Fork for each command line that comes, until the SuperExec has ended.

    Parameters
    ----------
    listener
        Where :func:`begin` asks.
    ended
        End of a pipe that closes with the SuperExec.

    Returns
    -------
    list of str or None
        In a forked process, the command line to run; None in this one, at the end.
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
    """Import what ClientApps need, and keep it out of their garbage collector's way."""
    import gc
    import importlib

    for module in PRELOADED:
        # Without Flower a ClientApp says so itself; the rest, an app may do without.
        with suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    # Collections in the copies would touch, and so copy, the memory that they share.
    gc.freeze()


def hear(line: socket.socket) -> list[str] | None:
    """Return the command line that somebody sends, or None for one that is not wanted."""
    line.settimeout(_PATIENCE_S)
    told = b""
    try:
        if _peer_user(line) != os.getuid():
            return None
        while part := line.recv(_MOST_BYTES):
            told += part
            if len(told) > _MOST_BYTES:
                return None
    except OSError:
        return None
    return [os.fsdecode(word) for word in told.split(b"\0")] if told else None


def bury() -> None:
    """Take note of the ClientApps that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_client_app(words: list[str]) -> None:
    """Do what Flower's program does with that command line; ends the process."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # Else every ClientApp would draw the same: NumPy does not know that it was forked.
        numpy.random.seed()
    sys.argv = [_CLIENT_APP, *words]
    from flwr.supernode.cli import flwr_clientapp

    flwr_clientapp()


def begin(words: list[str]) -> None:
    """Have a ClientApp forked for a command line, or become Flower's own program."""
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
            # The words hold a token, and a name that is free again is anybody's.
            if _peer_user(line) != os.getuid():
                return False
            line.sendall(b"\0".join(map(os.fsencode, words)))
            line.shutdown(socket.SHUT_WR)
            return bool(line.recv(1))
    except OSError:
        return False


def _peer_user(line: socket.socket) -> int:
    """Return the number of the user at the other end of a Unix socket."""
    found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", found)[1]
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
