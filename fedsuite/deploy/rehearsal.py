"""Runs on an existing federation, or on a federation rehearsed on one machine."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedsuite.core.errors import RunError, Stopped
from fedsuite.core.keys import Value
from fedsuite.core.output import print_line
from fedsuite.core.progress import Work
from fedsuite.deploy.endings import failed_there, is_full, left_to_superlink, run_folder
from fedsuite.deploy.folders import (
    NODES,
    SUPERLINK,
    NodeFolder,
    SuperLinkFolder,
    init_federation,
)
from fedsuite.deploy.missing_nodes import MissingNodes
from fedsuite.deploy.programs import (
    is_healthy,
    register_nodes,
    superlink_command,
    superlink_environment,
    superlink_helper_command,
    supernode_command,
    supernode_environment,
    supernode_helper_command,
    write_connection,
)
from fedsuite.engines.api import resumable
from fedsuite.engines.deployment import allowed_by_starter
from fedsuite.engines.flower import (
    OnLine,
    fleet_is_grpc,
    follow_run,
    in_world,
    started_run,
)
from fedsuite.engines.ports import LOOPBACK
from fedsuite.engines.processes import POLL_INTERVAL, Program, World
from fedsuite.engines.staging import stage_keys
from fedsuite.experiment.experiment import site_names
from fedsuite.experiment.paths import path_keys, places
from fedsuite.results.layout import EXPERIMENT, FEDERATION_VARIABLE
from fedsuite.results.writer import is_used


def submit(
    folder: SuperLinkFolder, run_config: Mapping[str, Value], on_line: OnLine, host: str
) -> None:
    """Run an experiment on an existing federation; return when the run has completed.

    Parameters
    ----------
    folder
        The SuperLink's folder, or a copy on the machine that starts runs.
    run_config
        The experiment's values, with paths on the ServerApp's and the nodes' machines.
    on_line
        Function that takes each line of the run's log.

    Raises
    ------
    RunError
        If the run does not start or does not complete.
    Stopped
        If Ctrl-C ends this call; the SuperLink goes on with the run.
    """
    write_connection(folder, host)
    run_id: str | None = None

    missing_nodes = MissingNodes(folder, site_names(run_config), on_line)

    def note(line: str) -> None:
        nonlocal run_id
        run_id = run_id or started_run(line)
        missing_nodes.hear(line)
        on_line(line)

    full = False

    def look() -> None:
        # Flower loses replies then, and waits for them until the round's deadline.
        nonlocal full
        was, full = full, is_full(folder.path)
        if full and not was:
            on_line(f"the disk of {folder.path} is full: free some")
        if run_id:
            missing_nodes.look()

    def drive(world: World) -> None:
        app = stage_keys(world.folder / "app", run_config)
        with _within(world, superlink_environment(folder)):
            follow_run(world, app, note, look)

    try:
        in_world(drive)
    except KeyboardInterrupt:
        message = left_to_superlink(folder, run_folder(run_config, folder), run_id)
        raise Stopped(message) from None
    except RunError as error:
        message = failed_there(error, folder, run_folder(run_config, folder))
        raise RunError(message) from error


def resume_there(
    run: Path, federation: Path, num_rounds: int | None, from_round: int | None
) -> None:
    """Go on with a run at the federation that began it, and print its log.

    Parameters
    ----------
    run
        The run's folder.
    federation
        The SuperLink's folder.
    num_rounds, from_round
        As for :func:`fedsuite.engines.api.resume`.

    Raises
    ------
    RunError
        If the federation's folder is gone, or as for :func:`submit`.
    """
    if not federation.is_dir():
        rest = f"{run / EXPERIMENT} --set resume=true"
        raise RunError(
            f"the federation {federation} of this run is not on this machine: go on at "
            f"another one by `fedsuite deploy run SUPERLINK {rest}`, or rehearse by "
            f"`fedsuite deploy local {rest}`"
        )
    experiment = resumable(run, {"engine": "deployment"}, num_rounds, from_round)
    submit(SuperLinkFolder.load(federation), experiment.values, print_line, LOOPBACK)


def rehearse(
    run_config: Mapping[str, Value], num_nodes: int, folder: Path | None, on_line: OnLine
) -> None:
    """Run an experiment on a new federation of processes on this machine.

    Certificates, keys, database and process isolation are as between machines. The
    experiment's values have absolute paths. ``folder`` is new or empty, or None for one
    that goes with the processes.

    Raises
    ------
    RunError
        If a program does not start, or the run does not complete.
    """

    def drive(world: World) -> None:
        allowed = allowed_by_starter(run_config)
        place = folder or world.folder / "federation"
        federation = LocalFederation(
            world, place, num_nodes, node_config=allowed, places=places(run_config)
        )
        try:
            federation.start()
            federation.run(run_config, on_line)
        except Exception:
            # Before the first round it holds nothing, and is in the way of the next try.
            if not is_used(run_folder(run_config)):
                shutil.rmtree(place, ignore_errors=True)
            raise

    in_world(drive)


class LocalFederation:
    """SuperLink and SuperNodes of a federation as processes of this machine.

    ``folder`` is new or empty; ``node_config`` adds to every node's configuration,
    ``places`` to its environment, and ``policy`` is the text of every node's policy.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        num_nodes: int,
        *,
        preload: bool = True,
        node_config: Mapping[str, Value] | None = None,
        places: Mapping[str, str] | None = None,
        policy: str = "",
    ) -> None:
        names = [f"node-{index}" for index in range(num_nodes)]
        ports = [world.reserve_port() for _ in range(num_nodes + 2)]
        fleet = ports[1] if fleet_is_grpc() else None
        init_federation(
            folder,
            [LOOPBACK],
            names,
            port=ports[0],
            fleet_port=fleet,
            days=2,
            policy=policy,
        )
        self.superlink = SuperLinkFolder.load(folder / SUPERLINK)
        loaded = [NodeFolder.load(folder / NODES / name) for name in names]
        more = node_config or {}
        self.nodes = [
            replace(node, preload=preload, config={**node.config, **more})
            for node in loaded
        ]
        self.running: dict[str, list[Program]] = {}
        self._world = world
        self._places = places or {}
        self._ports = ports[2:]
        # Several SuperExecs together look for work as often as one.
        world.environment.setdefault(POLL_INTERVAL, f"{min(1.0, 0.05 * num_nodes):g}")
        write_connection(self.superlink)

    def start(self) -> None:
        """Start all programs, and wait until the nodes have joined."""
        self.start_superlink()
        for index in range(len(self.nodes)):
            self.start_node(index)
        with Work("waiting for SuperNodes", len(self.nodes)) as joined:
            for node in self.nodes:
                program = self.running[node.name][0]
                program.wait_until(partial(_is_connected, program))
                joined.advance()

    def start_superlink(self) -> None:
        """Start the SuperLink and its SuperExec, and register the nodes' keys."""
        with _within(self._world, superlink_environment(self.superlink)):
            link = self._world.start(SUPERLINK, superlink_command(self.superlink))
            with Work("starting the SuperLink"):
                link.wait_until(partial(is_healthy, self.superlink))
            register_nodes(self.superlink)
            helpers = self.running.get(SUPERLINK, [])[1:]
            if not helpers or helpers[0].process.poll() is not None:
                command = superlink_helper_command(self.superlink)
                helpers = [self._world.start(f"{SUPERLINK}-superexec", command)]
        self.running[SUPERLINK] = [link, *helpers]

    def start_node(self, index: int) -> None:
        """Start a SuperNode and its SuperExec."""
        folder, port = self.nodes[index], self._ports[index]
        with _within(self._world, {**supernode_environment(folder), **self._places}):
            node = self._world.start(folder.name, supernode_command(folder, port))
            command = supernode_helper_command(folder, port)
            helper = self._world.start(f"{folder.name}-superexec", command)
        self.running[folder.name] = [node, helper]

    def run(self, run_config: Mapping[str, Value], on_line: OnLine) -> None:
        """Run an experiment; see :func:`rehearse`."""
        self.run_app(stage_keys(self._world.folder / "app", run_config), on_line)

    def run_app(self, app: Path, on_line: OnLine) -> None:
        """Run the Flower app in a folder; return when the run has completed."""

        def check() -> None:
            self.running[SUPERLINK][0].check_alive()

        with _within(self._world, superlink_environment(self.superlink)):
            follow_run(self._world, app, on_line, check)


def _is_connected(node: Program) -> bool:
    return "SuperNode ID" in node.text


@contextmanager
def _within(world: World, environment: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside the block."""
    names = (
        *("FLWR_HOME", "PYTHONPATH", FEDERATION_VARIABLE),
        *(key.path for key in path_keys() if key.path),
    )
    before = dict(world.environment)
    world.environment.update({n: environment[n] for n in names if n in environment})
    try:
        yield
    finally:
        world.environment.clear()
        world.environment.update(before)
