"""Runs an experiment in Flower's Simulation Runtime: one machine, Ray actors."""

from collections.abc import Mapping
from pathlib import Path

from fedsuite.core.keys import Value
from fedsuite.core.output import print_line
from fedsuite.engines.flower import (
    OnLine,
    in_world,
    run_app,
    stage_app,
    start_superlink,
)
from fedsuite.engines.processes import POLL_INTERVAL, World

_SECONDS_BETWEEN_LOOKS = "0.5"
"""Pause of the SuperExec: it starts the run, and then looks for work until the end. With 20
looks a second it and the SuperLink took 12 % of a core all the while."""


def run_ray(
    run_config: Mapping[str, Value],
    *,
    num_supernodes: int,
    client_cpus: int = 1,
    client_gpus: float = 0.0,
    on_line: OnLine = print_line,
    package: Path | None = None,
) -> None:
    """Run an app in Flower's simulation and return when it has completed.

    Parameters
    ----------
    run_config
        The run's whole configuration. Folders in it must be absolute: Flower's processes
        run in a folder of their own.
    num_supernodes
        Number of simulated SuperNodes, at least 1.
    client_cpus
        CPUs that Ray sets aside for each actor; there are as many actors as fit.
    client_gpus
        GPUs for each actor; a fraction lets several share one.
    on_line
        Takes each line of the run's log, without colours; by default they are printed.
    package
        Package folder with ``server_app.py`` and ``client_app.py``; by default that of
        the fedsuite that is running.

    Raises
    ------
    RunError
        If the run cannot start or does not complete; the message has the cause.
    """
    federation = (
        f"num-supernodes={num_supernodes} client-resources-num-cpus={client_cpus} "
        f"client-resources-num-gpus={float(client_gpus)}"
    )

    def drive(world: World) -> None:
        world.environment.setdefault(POLL_INTERVAL, _SECONDS_BETWEEN_LOOKS)
        app = stage_app(world.folder / "app", run_config, package=package)
        superlink = start_superlink(world, ["--simulation"])
        options = ["--federation-config", federation]
        run_app(world, app, superlink, options, on_line)

    in_world(drive, package=package)
