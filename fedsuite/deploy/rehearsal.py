"""A run on a federation: on one that stands, or rehearsed whole on one machine."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedsuite.deploy.folders import (
    NODES,
    SUPERLINK,
    NodeFolder,
    SuperLinkFolder,
    init_federation,
)
from fedsuite.deploy.programs import (
    LOOPBACK,
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
from fedsuite.engines.flower import OnLine, fleet_is_grpc, follow_run, in_world, stage_app
from fedsuite.engines.processes import POLL_INTERVAL, Program, World
from fedsuite.keys import Value


def submit(
    folder: SuperLinkFolder, run_config: Mapping[str, Value], on_line: OnLine, host: str
) -> None:
    """Run an experiment on a federation that stands; returns when it has completed.

    Parameters
    ----------
    folder
        Of the SuperLink: on its own machine, or a copy of ``superlink.toml``, ``ca.crt``
        and the rest on that of whoever may start runs.
    run_config
        The experiment's values. Paths are the ServerApp's and the nodes' own.
    on_line
        Takes each line of the run's log.
    host
        Where the SuperLink is.

    Raises
    ------
    RunError
        If the run does not start or does not complete.
    """
    write_connection(folder, host)

    def drive(world: World) -> None:
        app = stage_app(world.folder / "app", run_config)
        with _within(world, superlink_environment(folder)):
            follow_run(world, app, on_line, lambda: None)

    in_world(drive)


def rehearse(
    run_config: Mapping[str, Value], num_nodes: int, folder: Path, on_line: OnLine
) -> None:
    """Run an experiment on a whole federation of its own, as processes of this machine.

    Everything is as between machines: certificates, keys, a database, process isolation.

    Parameters
    ----------
    run_config
        The experiment's values, with absolute paths.
    num_nodes
        Number of nodes.
    folder
        Where the federation's folders go; must not exist, or be empty.
    on_line
        Takes each line of the run's log.

    Raises
    ------
    RunError
        If something does not start, or the run does not complete.
    """
    names = [f"node-{index}" for index in range(num_nodes)]

    def drive(world: World) -> None:
        ports = [world.reserve_port() for _ in range(num_nodes + 2)]
        fleet = ports[1] if fleet_is_grpc() else None
        init_federation(folder, [LOOPBACK], names, port=ports[0], fleet_port=fleet, days=2)
        superlink = SuperLinkFolder.load(folder / SUPERLINK)
        # As in Flower's own defaults several programs look for work every second.
        world.environment.setdefault(POLL_INTERVAL, f"{min(1.0, 0.05 * num_nodes):g}")
        write_connection(superlink)
        with _within(world, superlink_environment(superlink)):
            link = world.start("superlink", superlink_command(superlink, LOOPBACK))
            link.wait_until(partial(is_healthy, superlink))
            register_nodes(superlink)
            world.start("superlink-superexec", superlink_helper_command(superlink))
        nodes = [
            _start_node(world, NodeFolder.load(folder / NODES / name), port)
            for name, port in zip(names, ports[2:], strict=True)
        ]
        for node in nodes:
            node.wait_until(partial(_is_connected, node))
        with _within(world, superlink_environment(superlink)):
            app = stage_app(world.folder / "app", run_config)
            follow_run(world, app, on_line, link.check_alive)

    in_world(drive)


def _start_node(world: World, folder: NodeFolder, port: int) -> Program:
    with _within(world, supernode_environment(folder)):
        node = world.start(folder.name, supernode_command(folder, port))
        helper = supernode_helper_command(folder, port)
        world.start(f"{folder.name}-superexec", helper)
    return node


def _is_connected(node: Program) -> bool:
    return "SuperNode ID" in node.text


@contextmanager
def _within(world: World, environment: Mapping[str, str]) -> Iterator[None]:
    """Give what is started inside the block these variables too."""
    names = ("FLWR_HOME", "FEDSUITE_RUNS", "FEDSUITE_STATE")
    before = dict(world.environment)
    world.environment.update(
        {name: environment[name] for name in names if name in environment}
    )
    try:
        yield
    finally:
        world.environment.clear()
        world.environment.update(before)
