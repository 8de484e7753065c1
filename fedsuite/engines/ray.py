"""Runs an experiment in Flower's Simulation Runtime: Ray actors of this machine."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from fedsuite.core.errors import RunError
from fedsuite.core.extras import require
from fedsuite.core.keys import Value
from fedsuite.core.output import print_line
from fedsuite.engines.flower import OnLine, in_world, run_app, start_superlink
from fedsuite.engines.processes import POLL_INTERVAL, World
from fedsuite.engines.staging import stage_app
from fedsuite.experiment.plug_ins import ALLOWED_CODE_VARIABLE, own_code
from fedsuite.results.layout import RUN_FOLDER, read_manifest

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
"""Variables that keep a simulation's programs from waiting, and from useless work."""


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
        The run's whole configuration, with absolute folders, because Flower's processes run
        in a folder of their own.
    num_supernodes
        Number of simulated SuperNodes, at least 1.
    client_cpus
        CPUs that Ray sets aside per actor; as many actors start as fit.
    client_gpus
        GPUs per actor; a fraction lets several actors share a GPU.
    on_line
        Function that takes each line of the run's log, without colours; default: print.
    package
        Package folder with ``server_app.py`` and ``client_app.py``; default: this fedsuite.

    Raises
    ------
    RunError
        If the run cannot start or does not complete; the message has the cause.
    """
    federation = (
        f"num-supernodes={num_supernodes} client-resources-num-cpus={client_cpus} "
        f"client-resources-num-gpus={float(client_gpus)}"
    )

    require("ray", "the engine ray")
    # Whoever starts a simulation is the operator of its nodes.
    allowed = {ALLOWED_CODE_VARIABLE: ",".join(own_code(run_config))}

    def drive(world: World) -> None:
        # The user's own values win.
        world.environment = {**_SPARING, **world.environment, **allowed}
        app = stage_app(world.folder / "app", run_config, package=package)
        superlink = start_superlink(world, ["--simulation"])
        options = ["--federation-config", federation]
        # The world's Ray needs no orderly end.
        with suppress(_Finished):
            run_app(world, app, superlink, options, partial(_tell_until_finished, on_line))

    in_world(drive, partial(World, package.name if package else "fedsuite"))


class _Finished(Exception):
    """A run whose folder is complete."""


def _tell_until_finished(on_line: OnLine, line: str) -> None:
    """Hand on a line; raise if it says that the run has finished, and its folder too.

    Until Flower says so takes Ray's end, the log's, and another of its programs: 3 s.
    """
    on_line(line)
    if line.startswith(RUN_FOLDER):
        with suppress(RunError):
            if read_manifest(Path(line.removeprefix(RUN_FOLDER)))["status"] == "finished":
                raise _Finished
