"""Becomes a ClientApp inside a shelter.

    python -P launcher.py DESCRIPTOR MEGABYTES MODULE ...

It loads the modules, waits for a letter on the descriptor, and then runs Flower's program
for one message. So the next message's process is ready before the message comes. A call of
that program is a pair of sockets, of which one end goes out over the descriptor: so a
shelter needs no network, not even one of its own.

    python -P launcher.py forks DESCRIPTOR MEGABYTES READ WRITE DEVICES MODULE ...

loads them once, and forks for each descriptor that comes in over the first. The copy shuts
itself in by Landlock, as ``landlock.py`` does, with the folder that came beside its
descriptor to write in.

This file runs by its path and imports nothing of fedsuite, because ClientApps must import
the code that a run brings to the node. Linux only.
"""

import ctypes
import gc
import importlib
import os
import resource
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_NO_NEW_PRIVILEGES, _DIE_WITH_PARENT = 38, 1
_HOST, _PORT = "127.0.0.1", 9
"""What Flower's program takes for the SuperNode; nothing listens there."""


class _Stream(socket.socket):
    """One end of a pair, which knows nothing of TCP."""

    def setsockopt(self, level: int, *value: Any) -> None:
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *value)


def call_over(line: socket.socket, timeout: object = None) -> socket.socket:
    """Return a connection to whoever holds the other end of a line."""
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(line, [b"c"], [theirs.fileno()])
    stream = _Stream(fileno=ours.detach())
    # Python's own default is an object of no kind.
    stream.settimeout(timeout if isinstance(timeout, int | float) else None)
    return stream


def main(descriptor: int, megabytes: int, modules: list[str]) -> None:
    """Wait for a letter on a socket, and run Flower's program."""
    bind_to_parent()
    load(modules)
    become_app(socket.socket(fileno=descriptor), megabytes)


def forks(
    descriptor: int, megabytes: int, allowed: tuple[str, str, str], modules: list[str]
) -> None:
    """Fork for each line that comes in, into a shelter; it ends with the socket."""
    bind_to_parent()
    load(modules)
    place = Path(__file__).with_name("landlock.py")
    spec = spec_from_file_location(place.stem, place)
    assert spec and spec.loader
    landlock = module_from_spec(spec)
    spec.loader.exec_module(landlock)
    # Collections in the copies would touch, and so copy, the memory that they share.
    gc.freeze()
    wishes = socket.socket(fileno=descriptor)
    while True:
        home, lines, _, _ = socket.recv_fds(wishes, 4096, 1)
        if not lines:
            return
        if not (child := os.fork()):
            wishes.close()
            bind_to_parent()
            os.chdir(home)
            places = dict.fromkeys(("HOME", "TMPDIR"), os.fsdecode(home))
            os.environ.update(places, FLWR_HOME=f"{places['HOME']}/flwr")
            tempfile.tempdir = None
            if numpy := sys.modules.get("numpy"):
                # NumPy does not notice a fork, so every app would draw the same numbers.
                numpy.random.seed()
            read, write, devices = allowed
            landlock.shut_in(read, f"{write},{places['HOME']}", devices)
            become_app(socket.socket(fileno=lines[0]), megabytes)
            return
        os.close(lines[0])
        # Who asked may have died; then nothing more comes in.
        with suppress(BrokenPipeError):
            wishes.sendall(struct.pack("i", child))
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def bind_to_parent() -> None:
    """End with whoever started this process, and get no privileges."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # Without a shelter's init, a killed relay would leave this process behind.
    libc.prctl(_DIE_WITH_PARENT, 9, 0, 0, 0)


def load(modules: list[str]) -> None:
    """Import what apps need."""
    for module in modules:
        # A ClientApp itself reports missing Flower; an app may not need the rest.
        with suppress(ImportError):
            importlib.import_module(module)


def become_app(line: socket.socket, megabytes: int) -> None:
    """Wait for a letter on a line, and run Flower's program with its calls over it."""
    if megabytes:
        most = megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if not _is_wanted(line):
        return
    connect = socket.create_connection

    def call(
        address: Any, timeout: Any = None, *others: Any, **words: Any
    ) -> socket.socket:
        if address != (_HOST, _PORT):
            return connect(address, timeout, *others, **words)
        return call_over(line, timeout)

    socket.create_connection = call
    address = f"{_HOST}:{_PORT}"
    words = ["--runtime-api-address", address, "--token", "0" * 64, "--insecure"]
    sys.argv = ["flwr-clientapp", *words]
    from flwr.supernode.cli import flwr_clientapp

    flwr_clientapp()


def _is_wanted(line: socket.socket) -> bool:
    """Say that the process is ready, and wait for a letter; False once nobody is there."""
    try:
        line.sendall(b"r")
        return bool(line.recv(1))
    except ConnectionError:
        # The relay died while this process loaded.
        return False


if __name__ == "__main__":
    os.umask(0o077)
    if sys.argv[1] == "forks":
        number, most_megabytes, read, write, devices, *names = sys.argv[2:]
        forks(int(number), int(most_megabytes), (read, write, devices), names)
    else:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
