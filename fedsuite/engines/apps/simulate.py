"""The door: a Flower app of anybody, run as it is.

Nothing of Flower is imported before there is an app to run.
"""

import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsuite.core.errors import ConfigError, FedsuiteError, RunError, Stopped, described
from fedsuite.core.keys import Value
from fedsuite.core.logs import write_line

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from fedsuite.engines.apps.grid import Answering
    from fedsuite.engines.apps.nodes import Federation
    from fedsuite.engines.apps.project import Project

NUM_SUPERNODES = 10
"""Number of nodes where neither the caller nor the app says one, as in Flower."""


def simulate(
    app: "str | Path | tuple[ServerApp, ClientApp]",
    *,
    num_supernodes: int = 0,
    run_config: str | Path | Mapping[str, Value] = "",
    workers: int = 1,
    seed: int | None = None,
    drop_out: float = 0.0,
    straggler: float = 0.0,
    report: str | Path | None = None,
) -> "Context":
    """Run a Flower app as it is, in this process: no Ray, no SuperLink, no bundle.

    Parameters
    ----------
    app
        Folder of the app, which holds its ``pyproject.toml``, or a bundle (``.fab``); or
        its two components, ``(server_app, client_app)``.
    num_supernodes
        Number of nodes; 0 is what the app's project file says, else 10, as in Flower.
    run_config
        Overrides of the app's run config, in Flower's syntax (``"lr=0.1 name='a b'"``), a
        TOML file, or names and values. With components it is the whole run config.
    workers
        Number of processes that the nodes live in; 1 is this process alone.
    seed
        Seed of the global random streams of ``random``, NumPy and torch, and of the node
        ids. Each answer of a node has streams of its own, so the results do not depend on
        ``workers``. None leaves all to the app.
    drop_out, straggler
        Probability that a node answers nothing in a round, or too late. Evaluation is
        always answered.
    report
        Folder for what the replies held, which ``fedsuite report`` and ``fedsuite
        compare`` read; None writes none.

    Returns
    -------
    Context
        The ServerApp's context after the run.

    Raises
    ------
    ConfigError
        If there is no such app, or an argument is out of range.
    RunError
        If a component cannot be imported, or a worker process died. What the ServerApp
        raises comes through as it is.
    """
    from flwr.app import Context, RecordDict

    from fedsuite.core.rng import global_states
    from fedsuite.engines.apps.grid import AppGrid, NodesHere
    from fedsuite.engines.apps.nodes import Federation, Nodes
    from fedsuite.engines.apps.project import Project, flat_overrides, opened
    from fedsuite.training.fault_plan import FaultPlan
    from fedsuite.workarounds.identity import flower_identity
    from fedsuite.workarounds.legacy_order import replies_in_order

    _check(workers, num_supernodes)
    faults = FaultPlan(drop_out=drop_out, straggler=straggler, seed=seed or 0)
    with ExitStack() as stack:
        project: Project | None = None
        if isinstance(app, tuple):
            config = flat_overrides(run_config)
        else:
            project = Project.read(stack.enter_context(opened(Path(app))))
            config = project.run_config(run_config)
        of_project = project.num_supernodes if project else 0
        count = num_supernodes or of_project or NUM_SUPERNODES
        federation = Federation.of(count, config, seed)
        answering: Answering
        if workers > 1:
            answering = _workers(project, federation, min(workers, count), stack)
        stack.enter_context(flower_identity(federation.run_id))
        stack.enter_context(replies_in_order())
        before = global_states()
        if project is None:
            assert isinstance(app, tuple)
            server_app, client_app = app
        else:
            stack.enter_context(project.own_modules())
            with federation.streams("import"):
                server_app, client_app = project.load()
        if workers == 1:
            answering = NodesHere(Nodes(client_app, federation), before)
        recorder = None
        if report is not None:
            from fedsuite.engines.apps.recording import AppRecorder

            name = project.folder.name if project else "app"
            keys = faults.values() if faults else {}
            recorder = AppRecorder(Path(report), name, federation, keys)
            stack.enter_context(recorder)
        grid = AppGrid(federation, answering, faults, recorder)
        context = Context(federation.run_id, 0, {}, RecordDict(), dict(config))
        with federation.streams("server"):
            server_app(grid, context)
        return context


def simulate_app(folder: Path, *, report: Path | None = None, **options: Any) -> None:
    """Run :func:`simulate` for the command: one line for each way in which it may end.

    Raises
    ------
    RunError
        If the ServerApp failed; its traceback stands above.
    Stopped
        If Ctrl-C ended it.
    """
    try:
        simulate(folder, report=report, **options)
    except FedsuiteError:
        raise
    except KeyboardInterrupt:
        raise Stopped("the simulation was stopped; no process of it is left") from None
    except Exception as error:
        from fedsuite.engines.apps.project import line_of

        traceback.print_exc()
        # The innermost line is often a library's, which the app's author never saw.
        words = described(error, line_of(error, folder))
        raise RunError(f"the ServerApp failed: {words}") from error
    if report is not None:
        write_line(f"run folder: {report}; see `fedsuite report {report}`")


def _check(workers: int, num_supernodes: int) -> None:
    if workers < 1:
        raise ConfigError(f"workers = {workers}: at least 1, which is this process")
    if num_supernodes < 0:
        raise ConfigError(
            f"num_supernodes = {num_supernodes}: at least 1, or 0 for the app's"
        )


def _workers(
    project: "Project | None",
    federation: "Federation",
    num_workers: int,
    stack: ExitStack,
) -> "Answering":
    if project is None:
        raise ConfigError(
            "workers need an app that other processes can import: give its folder, not its "
            "components, or workers=1"
        )
    from fedsuite.engines.apps.workers import Workers

    workers = Workers(project, federation, num_workers)
    stack.callback(workers.close)
    return workers
