"""Flower's simulation and its Ray, loaded before Flower starts them. Linux only.

    python -P begun.py load FOLDER MODULE ...
    python -I -S begun.py ask SOCKET PROGRAM ARGUMENT ...

``load`` starts Ray, imports the modules, and becomes the program that the first ``ask`` at
its socket names. A fork of the same process stays, and forks again for each of Ray's
workers, which so share what was imported. An ``ask`` that nobody answers runs the program
itself.

This file runs by its path and imports nothing of fedsuite, because the programs must import
the code that a run brings.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import dropwhile

SIMULATION, WORKERS = "simulation.socket", "workers.socket"
"""Sockets in the folder: of the one simulation, and of Ray's workers."""

ENVIRONMENT = ".environment"
"""End of the name of a file beside a socket: variables for who asks there, as JSON."""

_ADDRESS_VARIABLE = "RAY_ADDRESS"

_Asked = tuple[list[str], dict[str, str], str]
"""A program with its arguments, its environment and its working folder."""


def load(folder: str, *modules: str) -> None:
    """Start Ray, import modules, and become what is asked for."""
    simulations = _listening(os.path.join(folder, SIMULATION))
    address = _start_ray(simulations)
    # The collector would look again and again through what stays.
    gc.disable()
    for module in modules:
        # The program says itself what it lacks.
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    if _threads() == 1:
        workers = _listening(os.path.join(folder, WORKERS))
        if os.fork() == 0:
            simulations.close()
            os.close(address)
            _become(_fork_for_each(workers))
            return
        workers.close()
    with suppress(ImportError):
        # Of Ray a fork must know nothing: Ray reads its variables when it is imported.
        importlib.import_module("ray")
    connection, (words, environment, place) = _next(simulations)
    # A second start, while this one runs, is to have a process of its own.
    os.unlink(os.path.join(folder, SIMULATION))
    _answer(connection)
    simulations.close()
    with os.fdopen(address, encoding="ascii") as told:
        # Empty if Ray did not start: Flower then tries itself, and says why not.
        if found := told.read():
            environment[_ADDRESS_VARIABLE] = found
    _become((words, environment, place))


def ask(place: str, *words: str) -> None:
    """Have the process at a socket run a program, or run the program here."""
    with suppress(FileNotFoundError), open(place + ENVIRONMENT, encoding="utf-8") as told:
        os.environ.update(json.load(told))
    asked: _Asked = (list(words), dict(os.environ), os.getcwd())
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        connection.sendall(json.dumps(asked).encode())
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1):
            return
    os.execv(sys.executable, [sys.executable, *words])


def _listening(place: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(place)
    server.listen(socket.SOMAXCONN)
    return server


def _start_ray(not_there: socket.socket) -> int:
    """Start Ray in a process of its own; return where its address is to be read."""
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(writing)
        return reading
    # Who asks must learn of the other process's death.
    not_there.close()
    import ray

    # Ray's own start; the simulation joins as a second driver and shows the workers' lines.
    ray.init(include_dashboard=False, log_to_driver=False)
    os.write(writing, ray.get_runtime_context().gcs_address.encode())
    os.close(writing)
    while True:
        signal.pause()


def _fork_for_each(server: socket.socket) -> _Asked:
    """Fork for each program that is asked for; return in the forks."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        connection, asked = _next(server)
        if os.fork() == 0:
            connection.close()
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return asked
        _answer(connection)


def _next(server: socket.socket) -> tuple[socket.socket, _Asked]:
    """Return the next that is asked for, and the connection to answer."""
    connection, _ = server.accept()
    with connection.makefile("rb") as told:
        words, environment, place = json.loads(told.read())
    return connection, (words, environment, place)


def _answer(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.sendall(b"1")
    connection.close()


def _become(asked: _Asked) -> None:
    """Run a program as Python would in a process of its own."""
    words, environment, place = asked
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    paths: Sequence[str] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path]
    # Options of Python come first; this process was started with those that matter.
    sys.argv = list(dropwhile(lambda word: word.startswith("-"), words))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    {"load": load, "ask": ask}[sys.argv[1]](*sys.argv[2:])
