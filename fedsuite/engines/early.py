"""Starts what every run under Ray needs before the run's keys are read.

To read and check an experiment takes a second, for the methods' code must be imported.
Meanwhile SuperLink and Ray can start.
"""

import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from fedsuite.engines import begun
from fedsuite.engines.flower import launch_superlink
from fedsuite.engines.processes import (
    POLL_INTERVAL,
    Program,
    World,
    own_script,
    short_base,
)

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray merges into what a program asks of its job; Flower asks for no such."""

_SPARING = {
    # Seconds between the SuperExec's looks for work. At Flower's 20 looks per second
    # SuperExec and SuperLink take 12 % of a core throughout a run.
    POLL_INTERVAL: "0.5",
    # Ray starts a worker per core before anything asks for one. Flower's actors need
    # another environment than those have, so that they would be thrown away.
    "RAY_prestart_worker_first_driver": "0",
    # Ray's programs start side by side. Who finds no other yet waits a second, ten times.
    "RAY_raylet_client_connect_timeout_milliseconds": "50",
    "RAY_raylet_client_num_connect_attempts": "200",
}
"""Variables of a simulation's programs that the user's own win over."""

_PROGRAMS = ("flower-superlink", "flower-superexec", "flwr")
"""Flower's programs that are forks of a process with their modules."""

_SIMULATION = "flwr-simulation"

_LOADED = (
    "flwr.superlink.cli",
    "flwr.supercore.cli",
    "flwr.cli.app",
    "flwr.simulation.app",
    "flwr.clientapp.client_app",
)
"""What the programs import; nothing that imports Ray."""

_LOADED_TOO = ("torch",)
"""What simulation and clients import besides, whatever the app; nothing with Ray."""


def spare_time(environment: dict[str, str]) -> None:
    """Set what keeps a simulation's programs from waiting, and from useless work."""
    for variable, value in _SPARING.items():
        environment.setdefault(variable, value)


class EarlyWorld(World):
    """A world whose SuperLink, Ray and simulation start at once.

    What starts one of Flower's programs by its name here finds a stand-in. The stand-in
    has a process that has loaded the program's modules fork for it, and Ray's workers start
    in the same way. The simulation waits until it is started. If those processes die,
    stand-ins and workers run the programs themselves. Linux only.

    Parameters
    ----------
    package
        As for :class:`~fedsuite.engines.processes.World`.
    """

    def __init__(self, package: str = "fedsuite") -> None:
        super().__init__(package)
        try:
            spare_time(self.environment)
            self._sockets = self.folder / "begun"
            self._stand_ins = self._sockets / "bin"
            self._stand_ins.mkdir(parents=True)
            self.loaded = self._load()
            path = self.environment.get("PATH", os.defpath)
            self.environment["PATH"] = os.pathsep.join([str(self._stand_ins), path])
            self.superlink = launch_superlink(self, ["--simulation"])
        except BaseException:
            self.close(grace_s=0.0)
            raise

    def tell(self, variables: Mapping[str, str]) -> None:
        """Set variables of the simulation and of the clients, before the app is submitted.

        Parameters
        ----------
        variables
            Their names and values.
        """
        job = {"env_vars": dict(variables), "py_executable": self._ask("workers")}
        told = {**variables, JOB_VARIABLE: json.dumps({"runtime_env": job})}
        (self._sockets / f"simulation{begun.ENVIRONMENT}").write_text(json.dumps(told))

    def _load(self) -> Program:
        """Start the processes that load modules, and write the stand-ins that ask them."""
        with ExitStack() as stack:
            files = []
            for name in ("programs", "workers", "simulation"):
                server = stack.enter_context(socket.socket(socket.AF_UNIX))
                server.bind(str(self._sockets / name))
                server.listen(socket.SOMAXCONN)
                files.append(server.fileno())
            modules = [",".join(_LOADED), ",".join(_LOADED_TOO)]
            command = [sys.executable, "-P", begun.__file__, "load", *map(str, files)]
            loaded = self.start("loaded", [*command, *modules], files)
        for program in _PROGRAMS:
            self._write_stand_in("programs", program)
        self._write_stand_in("simulation", _SIMULATION)
        return loaded

    def _write_stand_in(self, socket_name: str, program: str) -> None:
        stand_in = self._stand_ins / program
        command = f"{self._ask(socket_name)} {shlex.quote(own_script(program))}"
        stand_in.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        stand_in.chmod(0o700)

    def _ask(self, socket_name: str) -> str:
        """Return the command that has the process at a socket run a program."""
        command = [sys.executable, "-I", "-S", begun.__file__, "ask"]
        return shlex.join([*command, str(self._sockets / socket_name)])


def can_begin() -> bool:
    """Return whether this machine can have an :class:`EarlyWorld`."""
    if sys.platform != "linux" or os.statvfs(short_base()).f_flag & os.ST_NOEXEC:
        return False  # stand-ins must be found before Flower's programs
    return all(own_script(program) for program in (*_PROGRAMS, _SIMULATION))
