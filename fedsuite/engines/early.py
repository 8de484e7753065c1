"""What a run under Ray needs whatever its keys, started before the keys are read.

To read and check an experiment takes a second, for the methods' code must be imported.
Meanwhile SuperLink and Ray can start.
"""

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.keys import AUTO
from fedsuite.engines import begun
from fedsuite.engines.cluster import chosen_address
from fedsuite.engines.flower import launch_superlink
from fedsuite.engines.processes import POLL_INTERVAL, World, own_script
from fedsuite.experiment.shipped import find_experiment

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray merges into what a program asks of its job; Flower asks for no such."""

_SECONDS_BETWEEN_LOOKS = "0.5"
"""Seconds between the SuperExec's looks for work. At Flower's 20 looks per second SuperExec
and SuperLink take 12 % of a core throughout a run."""

_PRESTART_VARIABLE = "RAY_prestart_worker_first_driver"
"""Variable that has Ray start a worker per core before anything asks for one. Flower's
actors need another environment than those have, so that they would be thrown away."""

_PROGRAM = "flwr-simulation"

_LOADED = ("torch", "flwr.simulation.app", "flwr.clientapp.client_app")
"""What simulation and clients import, whatever the app; nothing that imports Ray."""


def spare_world(world: World) -> None:
    """Set what keeps the idle programs of a simulation from taking time."""
    world.environment.setdefault(POLL_INTERVAL, _SECONDS_BETWEEN_LOOKS)
    world.environment.setdefault(_PRESTART_VARIABLE, "0")


class EarlyWorld(World):
    """A world whose SuperLink, Ray and simulation start at once.

    The simulation waits until Flower starts it by its name: Flower finds a stand-in, which
    hands the arguments on. Ray's workers are forks of the same process. If that process
    dies, stand-in and workers run the programs themselves. Linux only.

    Parameters
    ----------
    package
        As for :class:`~fedsuite.engines.processes.World`.
    """

    def __init__(self, package: str = "fedsuite") -> None:
        super().__init__(package)
        try:
            spare_world(self)
            self._sockets = self.folder / "begun"
            self._sockets.mkdir()
            self._write_stand_in(own_script(_PROGRAM))
            command = [sys.executable, "-P", begun.__file__, "load", str(self._sockets)]
            self.simulation = self.start("simulation", [*command, *_LOADED])
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
        job = {"env_vars": dict(variables), "py_executable": self._ask(begun.WORKERS)}
        told = {**variables, JOB_VARIABLE: json.dumps({"runtime_env": job})}
        file = self._sockets / (begun.SIMULATION + begun.ENVIRONMENT)
        file.write_text(json.dumps(told))

    def _ask(self, name: str) -> str:
        """Return the command that has the process at a socket run a program."""
        command = [sys.executable, "-I", "-S", begun.__file__, "ask"]
        return shlex.join([*command, str(self._sockets / name)])

    def _write_stand_in(self, program: str) -> None:
        folder = self._sockets / "bin"
        folder.mkdir()
        command = f"{self._ask(begun.SIMULATION)} {shlex.quote(program)}"
        stand_in = folder / _PROGRAM
        stand_in.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        stand_in.chmod(0o700)
        path = self.environment.get("PATH", os.defpath)
        self.environment["PATH"] = os.pathsep.join([str(folder), path])


def can_begin() -> bool:
    """Return whether this machine can have an :class:`EarlyWorld`."""
    return sys.platform == "linux" and bool(own_script(_PROGRAM))


@contextmanager
def begun_for(
    experiment: Path | Mapping[str, object], changes: Mapping[str, object]
) -> Iterator[EarlyWorld | None]:
    """Begin what an experiment will need, if it will run under a Ray of its own.

    Nothing is checked here: who reads the experiment says what is wrong with it.

    Parameters
    ----------
    experiment
        File, or keys and values.
    changes
        Values that override the experiment's.

    Yields
    ------
    EarlyWorld or None
        None if another engine or a Ray cluster will run it, or it is not known yet. The
        world ends with the block.
    """
    given = experiment if isinstance(experiment, Mapping) else _keys_of(experiment)
    if not _wants_own_ray({**given, **changes}) or not can_begin():
        yield None
        return
    with EarlyWorld() as world:
        yield world


def _keys_of(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(find_experiment(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _wants_own_ray(values: Mapping[str, object]) -> bool:
    if values.get("engine", AUTO) != "ray":
        return False
    try:
        return not chosen_address(str(values.get("ray-address", "")), os.environ)
    except FedsuiteError:
        return False
