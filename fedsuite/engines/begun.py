"""Loads what Flower's programs import, and forks for each program. Linux only.

    python -P begun.py load PROGRAMS WORKERS SIMULATION MODULES MODULES
    python -I -S begun.py ask SOCKET PROGRAM ARGUMENT ...

``load`` starts Ray and imports modules. After the first modules a fork stays that forks
again for each of Flower's programs, after the others one for each of Ray's workers, so that
all share what was imported. The process itself becomes the simulation. ``ask`` has the
process that listens at a socket run a program, and stands for it. If nobody listens, it
runs the program itself.

This file runs by its path and imports nothing of fedsuite, because the programs must import
the code that a run brings.
"""

import atexit
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
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any, NoReturn, TextIO

ENVIRONMENT = ".environment"
"""End of the name of a file beside a socket: variables for who asks there, as JSON."""

_ADDRESS_VARIABLE = "RAY_ADDRESS"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class _Asked:
    """A program to run: its words, environment, folder, files 0 to 2, and who asks."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    files: list[int]
    connection: socket.socket


def load(programs: str, workers: str, simulation: str, first: str, then: str) -> None:
    """Start Ray, import modules, and become the simulation.

    Parameters
    ----------
    programs, workers, simulation
        Numbers of the sockets that listen for them.
    first, then
        Modules of the programs, and those that workers and simulation need too;
        comma-separated. Of Ray none may know: Ray reads its variables when it is imported.
    """
    servers = [socket.socket(fileno=int(one)) for one in (programs, workers, simulation)]
    address = _start_ray(servers)
    for server, modules in zip(servers, (first, then), strict=False):
        _import(modules.split(","))
        # A fork has the locks of other threads, and not the threads.
        if _threads() == 1 and os.fork() == 0:
            os.close(address)
            _become(_fork_for_each(server, servers))
            return
        server.close()
    _join_ray(address)
    asked = _next(servers[2])
    # A second simulation, while this one runs, is to have a process of its own.
    _answer(asked, os.getpid())
    servers[2].close()
    _become(asked)


def ask(place: str, *words: str) -> None:
    """Have the process at a socket run a program, or run the program here."""
    with suppress(FileNotFoundError), open(place + ENVIRONMENT, encoding="utf-8") as told:
        os.environ.update(json.load(told))
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        socket.send_fds(connection, [b"\n"], [0, 1, 2])
        asked = json.dumps([words, dict(os.environ), os.getcwd()])
        connection.sendall(asked.encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("r") as answers:
            if answer := answers.readline():
                _stand_for(int(answer), answers)
    os.execv(sys.executable, [sys.executable, *words])


def _stand_for(pid: int, answers: TextIO) -> NoReturn:
    """Hand on the signals that ask a process to stop, and end as it does."""
    killed_by: int = signal.SIGKILL

    def hand_on(number: int, _frame: object) -> None:
        nonlocal killed_by
        killed_by = number
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in _STOP_SIGNALS:
        signal.signal(number, hand_on)
    # The program tells its status, unless it is killed.
    if status := answers.readline():
        os._exit(int(status))
    if killed_by != signal.SIGKILL:
        signal.signal(killed_by, signal.SIG_DFL)
    os.kill(os.getpid(), killed_by)
    os._exit(1)


def _import(modules: Sequence[str]) -> None:
    # The collector would look again and again through what stays.
    gc.disable()
    for module in modules:
        # The program says itself what it lacks.
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()


def _start_ray(servers: Sequence[socket.socket]) -> int:
    """Start Ray in a process of its own; return where its address is to be read."""
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(writing)
        return reading
    for server in servers:
        server.close()
    import ray

    # Ray's own start; the simulation joins as a second driver and shows the workers' lines.
    ray.init(include_dashboard=False, log_to_driver=False)
    os.write(writing, ray.get_runtime_context().gcs_address.encode())
    os.close(writing)
    while True:
        signal.pause()


def _join_ray(address: int) -> None:
    """Have Ray, when it is asked to start, wait for the one that starts, and join it.

    The simulation has a second's work before it asks.
    """
    _import(["ray"])
    ray: Any = sys.modules.get("ray")
    if ray is None:
        return
    start = ray.init

    def init(**options: object) -> object:
        with os.fdopen(address, encoding="ascii") as told:
            # Empty if Ray did not start: the other then tries itself, and says why not.
            if found := told.read():
                os.environ[_ADDRESS_VARIABLE] = found
        ray.init = start
        return start(**options)

    ray.init = init


def _fork_for_each(server: socket.socket, servers: Sequence[socket.socket]) -> _Asked:
    """Fork for each program that is asked for; return in the forks."""
    for other in servers:
        if other is not server:
            other.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        asked = _next(server)
        pid = os.fork()
        if pid == 0:
            server.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if numpy_random := sys.modules.get("numpy.random"):
                # NumPy does not notice a fork, so all forks would draw the same numbers.
                numpy_random.seed()
            return asked
        _answer(asked, pid)
        asked.connection.close()
        for file in asked.files:
            os.close(file)


def _next(server: socket.socket) -> _Asked:
    """Return the next program that is asked for."""
    connection, _ = server.accept()
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as told:
        words, environment, folder = json.loads(told.read())
    return _Asked(words, environment, folder, list(files), connection)


def _answer(asked: _Asked, number: int) -> None:
    with suppress(OSError):
        asked.connection.sendall(f"{number}\n".encode())


def _become(asked: _Asked) -> None:
    """Run a program as Python would in a process of its own."""
    os.environ.clear()
    os.environ.update(asked.environment)
    os.chdir(asked.folder)
    for number, file in enumerate(asked.files):
        os.dup2(file, number)
        os.close(file)
    paths = asked.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path]
    # Options of Python come first; this process was started with those that matter.
    sys.argv = list(dropwhile(lambda word: word.startswith("-"), asked.words))
    with suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write(os.path.basename(sys.argv[0]))  # what `ps` and `top` show
    status = [1]
    atexit.register(lambda: _answer(asked, status[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status[0] = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        status[0] = code if isinstance(code, int) else 1
        raise


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    _, kind, *told = sys.argv
    if kind == "load":
        load(*told)
    else:
        ask(*told)
