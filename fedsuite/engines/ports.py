"""Ports of this machine's loopback for programs that are started later."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedsuite.core.errors import RunError

LOOPBACK = "127.0.0.1"


def reserved_port() -> tuple[int, socket.socket]:
    """Return a free port, and the socket that reserves it until it is closed.

    The socket stays bound to the port without listening. Linux then gives the port to
    nobody who asks for any free port, but lets a server bind it. Other systems would refuse
    the server, so there the socket is closed, and the port is only likely to stay free.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind((LOOPBACK, 0))
    port: int = reserved.getsockname()[1]
    if sys.platform != "linux":
        reserved.close()
    return port, reserved


@contextmanager
def chosen_port(wanted: int | None, option: str) -> Iterator[int]:
    """Reserve a free port inside the block, or use the one that was asked for.

    Parameters
    ----------
    wanted
        The port; None takes any.
    option
        Option that asks for a port, for the error.

    Raises
    ------
    RunError
        If another program has the wanted port.
    """
    if wanted is None:
        port, reserved = reserved_port()
        with reserved:
            yield port
        return
    with socket.socket() as probe:
        # As servers do: a connection that has just ended keeps no port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted))
        except OSError as error:
            raise RunError(
                f"{option} {wanted}: this machine's port cannot be used "
                f"({error.strerror}): leave the option out, and a free one is chosen"
            ) from None
    yield wanted
