"""Becomes a ClientApp inside a shelter.

    python -P launcher.py DESCRIPTOR MEGABYTES MODULE ...

It loads the modules, opens a port of the shelter's own loopback, and hands the listening
socket out over the descriptor, so that the relay answers there from outside. It waits for a
letter, and then runs Flower's program for one message. So the next message's process is
ready before the message comes.

This file runs by its path and imports nothing of fedsuite, because ClientApps must import
the code that a run brings to the node. Linux only.
"""

import ctypes
import importlib
import os
import resource
import socket
import sys
from contextlib import suppress

_NO_NEW_PRIVILEGES, _DIE_WITH_PARENT = 38, 1


def main(descriptor: int, megabytes: int, modules: list[str]) -> None:
    """Wait for a letter on a socket, and run Flower's program."""
    line = socket.socket(fileno=descriptor)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # Without a shelter's init, a killed relay would leave this process behind.
    libc.prctl(_DIE_WITH_PARENT, 9, 0, 0, 0)
    if megabytes:
        most = megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for module in modules:
        # A ClientApp itself reports missing Flower; an app may not need the rest.
        with suppress(ImportError):
            importlib.import_module(module)
    socket.send_fds(line, [b"l"], [listener.fileno()])
    listener.close()
    if not line.recv(1):
        return
    line.close()
    words = ["--runtime-api-address", address, "--token", "0" * 64, "--insecure"]
    sys.argv = ["flwr-clientapp", *words]
    from flwr.supernode.cli import flwr_clientapp

    flwr_clientapp()


if __name__ == "__main__":
    os.umask(0o077)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
