"""Runs an experiment in Flower's Deployment Runtime: real processes on loopback."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fedsuite.core.errors import RunError
from fedsuite.core.keys import Value
from fedsuite.core.output import print_line
from fedsuite.core.progress import Work
from fedsuite.engines.flower import (
    OnLine,
    SuperLink,
    in_world,
    run_app,
    start_superlink,
)
from fedsuite.engines.processes import POLL_INTERVAL, Program, World
from fedsuite.engines.staging import stage_app
from fedsuite.experiment.paths import places
from fedsuite.experiment.plug_ins import ALLOWED_CODE, own_code


def run_deployment(
    run_config: Mapping[str, Value],
    *,
    num_supernodes: int,
    on_line: OnLine = print_line,
    node_config: Mapping[str, Value] | None = None,
    package: Path | None = None,
) -> None:
    """Run an app to its end on a new SuperLink and SuperNodes.

    The SuperNodes' configuration has ``partition-id`` 0, 1, ... and ``num-partitions``, as
    in Flower's simulation.

    Parameters
    ----------
    run_config
        The run's whole configuration, with absolute folders, because Flower's processes run
        in a folder of their own.
    num_supernodes
        Number of SuperNodes to start, at least 1.
    on_line
        Function that takes each line of the run's log, without colours; default: print.
    node_config
        More entries for the configuration of every SuperNode.
    package
        Package folder with ``server_app.py`` and ``client_app.py``; default: this fedsuite.

    Raises
    ------
    RunError
        If the run cannot start or does not complete, or no SuperNode is left. The death of
        one SuperNode is only reported.
    """

    def drive(world: World) -> None:
        # Every SuperNode has a SuperExec. All SuperExecs together look 20 to 40 times per
        # second.
        interval = min(1.0, 0.05 * num_supernodes)
        world.environment.setdefault(POLL_INTERVAL, f"{interval:g}")
        # No node takes a folder from a message; whoever starts nodes chooses theirs.
        world.environment.update(places(run_config))
        app = stage_app(world.folder / "app", run_config, package=package)
        superlink = start_superlink(world, [])
        config = {**allowed_by_starter(run_config), **(node_config or {})}
        nodes = [
            _start_supernode(world, superlink, i, num_supernodes, config)
            for i in range(num_supernodes)
        ]
        with Work("waiting for SuperNodes", num_supernodes) as joined:
            for node in nodes:
                node.wait_until(partial(_is_connected, node))
                joined.advance()
        run_app(world, app, superlink, [], on_line, partial(_watch, nodes, on_line))

    in_world(drive, partial(World, package.name if package else "fedsuite"))


def allowed_by_starter(run_config: Mapping[str, Value]) -> dict[str, Value]:
    """Return the node-config by which whoever starts nodes allows a run's own code."""
    code = own_code(run_config)
    return {ALLOWED_CODE: ",".join(code)} if code else {}


def _is_connected(node: Program) -> bool:
    return "SuperNode ID" in node.text


def _watch(nodes: list[Program], on_line: OnLine) -> None:
    """Report and forget ended SuperNodes; raise when none is left."""
    for node in [node for node in nodes if node.process.poll() is not None]:
        nodes.remove(node)
        on_line(f"{node.name} {node.how_it_ended()}")
        if not nodes:
            raise RunError(f"no SuperNode is left: {node.name} {node.how_it_ended()}")


def node_config_text(config: Mapping[str, Value]) -> str:
    """Return ``config`` as text for ``flower-supernode --node-config``."""
    return " ".join(f"{key}={_literal(value)}" for key, value in config.items())


def _literal(value: Value) -> str:
    import tomli_w

    _, _, literal = tomli_w.dumps({"value": value}).strip().partition(" = ")
    if not isinstance(value, str):
        return literal
    # Flower splits the text at quotes before it reads it as TOML.
    return '"' + literal[1:-1].replace('\\"', "\\u0022") + '"'


def _start_supernode(
    world: World,
    superlink: SuperLink,
    partition_id: int,
    num_partitions: int,
    node_config: Mapping[str, Value],
) -> Program:
    config = {"partition-id": partition_id, "num-partitions": num_partitions}
    return world.start(
        f"supernode-{partition_id}",
        [
            "flower-supernode",
            "--insecure",
            *("--superlink", superlink.fleet_address),
            *("--host", "127.0.0.1", "--port", str(world.reserve_port())),
            *("--node-config", node_config_text({**node_config, **config})),
        ],
    )
