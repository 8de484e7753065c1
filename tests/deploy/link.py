"""A link between a node and the SuperLink that can be cut, hung, made lossy and slow."""

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

_RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends a reset, as a line that breaks would look."""


class Link:
    """Carries connections from a port of its own to another one of this machine.

    Parameters
    ----------
    target
        ``HOST:PORT`` that it leads to.
    mean_bytes
        How many bytes a connection carries on average before it breaks; 0 never breaks one.
    seed
        Seed of where connections break.
    """

    def __init__(self, target: str, mean_bytes: int = 0, seed: int = 0) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._mean_bytes, self._draws = mean_bytes, random.Random(seed)
        self._flows = threading.Event()
        self._flows.set()
        self._live: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.broken = 0
        """Connections that broke, or that could not be made."""
        self.rate = float("inf")
        """Bytes a second each way, whatever the number of connections."""
        self.carried = {"up": 0, "down": 0}
        """Bytes that went towards the target, and back."""
        self._locks = {way: threading.Lock() for way in self.carried}
        self._start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones until :meth:`heal`."""
        # Who waits in accept() wakes by the shutdown.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in list(self._live):
            self._break(end)

    def hang(self) -> None:
        """Carry nothing more until :meth:`heal`; nobody is told."""
        self._flows.clear()

    def heal(self) -> None:
        """Carry everything again."""
        self._flows.set()
        if self._server.fileno() == -1:
            self._server = socket.create_server(("127.0.0.1", self._port))
            self._start()

    def close(self) -> None:
        """End all of it."""
        self.cut()
        self._flows.set()

    def _start(self) -> None:
        threading.Thread(target=self._serve, args=(self._server,), daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            self._live.add(near)
            try:
                far = socket.create_connection(self._target)
            except OSError:
                self._break(near)
                continue
            self._live.add(far)
            for way in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        left = self._lifetime()
        try:
            while data := source.recv(65536):
                self._flows.wait()
                left -= len(data)
                if left < 0:
                    self._break(source)
                    self._break(sink)
                    return
                # One lock a way: connections share the line.
                with self._locks[way]:
                    time.sleep(len(data) / self.rate)
                    self.carried[way] += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                self._live.discard(end)
                with contextlib.suppress(OSError):
                    end.close()

    def _lifetime(self) -> float:
        if not self._mean_bytes:
            return float("inf")
        return self._draws.expovariate(1 / self._mean_bytes)

    def _break(self, end: socket.socket) -> None:
        self.broken += 1
        self._live.discard(end)
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            # Wakes the thread that waits for it.
            end.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            end.close()


@contextlib.contextmanager
def linked(target: str, mean_bytes: int = 0, seed: int = 0) -> Iterator[Link]:
    """Yield a link that ends with the block."""
    link = Link(target, mean_bytes, seed)
    try:
        yield link
    finally:
        link.close()
