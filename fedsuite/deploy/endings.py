"""Messages after Ctrl-C of a run on a federation, with the commands to go on."""

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedsuite.core.errors import ConfigError, RunError, Stopped
from fedsuite.core.keys import AUTO, Value
from fedsuite.deploy.folders import NODES, RUNS, SUPERLINK, SuperLinkFolder
from fedsuite.deploy.validity import check_superlink
from fedsuite.engines.api import where_it_stopped
from fedsuite.engines.flower import CONNECTION, NoAnswerError, StoppedThereError
from fedsuite.results.layout import EXPERIMENT, MANIFEST
from fedsuite.results.reader import load_run
from fedsuite.results.writer import RunFolder

FULL_BYTES = 20 * 2**20
"""Free space of a disk below which it is full: SQLite and a model need more."""


def is_full(place: Path) -> bool:
    """Return whether the disk of a file or folder is full."""
    return shutil.disk_usage(place).free < FULL_BYTES


def left_to_superlink(folder: SuperLinkFolder, run: Path, run_id: str | None) -> str:
    """Return the message on a run that the SuperLink goes on with.

    The run's folder may be on another machine, and Flower's number of the run unknown.
    """
    if run_id is None:
        status = shlex.join(["fedsuite", "deploy", "status", str(folder.path)])
        return (
            "stopped before the SuperLink told of the run: "
            f"`{status}` says whether the SuperLink has it"
        )
    where = f"in {run}"
    if (run / MANIFEST).exists():
        stopped = load_run(run)
        done = stopped.rounds[-1]["round"] if stopped.rounds else 0
        where = f"after round {done} of {stopped.experiment['num-rounds']} {where}"
    home = f"FLWR_HOME={shlex.quote(str(folder.path / 'flwr'))}"
    return (
        f"run {run_id} goes on at the SuperLink, {where}: `{home} flwr log {run_id} "
        f"{CONNECTION}` shows its log, `{home} flwr stop {run_id} {CONNECTION}` stops it"
    )


def failed_there(error: RunError, folder: SuperLinkFolder, run: Path) -> str:
    """Return what to do about a run that failed at a federation's SuperLink.

    Flower tells a SuperLink that was killed, and a disk that is full, in its own words.
    """
    again = shlex.join(["fedsuite", "resume", str(run)])
    for place in (folder.path, run):
        existing = next(p for p in (place, *place.parents) if p.exists())
        if is_full(existing):
            left = shutil.disk_usage(existing).free / 2**20
            return (
                f"the disk of {place} is full ({left:.1f} MB left): free some, "
                f"then `{again}` goes on; Flower's words: {error}"
            )
    if isinstance(error, StoppedThereError):
        return f"{error}: `{again}` goes on"
    try:
        check_superlink(folder)
    except ConfigError as ended:
        then = f"`{again}` goes on" if run.exists() else "type this again"
        return (
            f"{ended}; once SuperLink and proxy are started again, {then}; "
            f"Flower's words: {error}"
        )
    if isinstance(error, NoAnswerError):
        start = shlex.join(["fedsuite", "deploy", "superlink", str(folder.path)])
        return (
            f"the SuperLink stopped answering: `{start}` starts it again, unless it runs; "
            f"the run then goes on there, or else by `{again}`"
        )
    return str(error)


@contextmanager
def resumable_rehearsal(
    run_config: Mapping[str, Value], num_nodes: int, kept: Path | None
) -> Iterator[None]:
    """Turn Ctrl-C in a rehearsal into a :class:`Stopped` with the command to go on.

    ``kept`` has the federation's folders, with the clients' states; None for folders to
    delete.
    """
    run = run_folder(run_config)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        # Its own process was killed.
        RunFolder.stop(run)
        if isinstance(error, SystemExit):
            raise
        raise Stopped(_where_a_rehearsal_stopped(run, num_nodes, kept)) from None


def run_folder(
    run_config: Mapping[str, Value], superlink: SuperLinkFolder | None = None
) -> Path:
    """Return the run's folder on the ServerApp's machine; by default in the SuperLink's."""
    output = str(run_config["output-dir"])
    if output == AUTO and superlink is not None:
        output = str(superlink.path / RUNS)
    return Path(output, str(run_config["run-name"]))


def _where_a_rehearsal_stopped(run: Path, num_nodes: int, kept: Path | None) -> str:
    rest = [str(run / EXPERIMENT), "--set", "resume=true"]
    if kept is None or not (run / MANIFEST).exists():
        nodes = ["--nodes", str(num_nodes)]
        return where_it_stopped(run, ["fedsuite", "deploy", "local", *rest, *nodes])
    superlink = str(kept.resolve() / SUPERLINK)
    start = shlex.join(["fedsuite", "deploy", "superlink", superlink])
    resuming = where_it_stopped(run, ["fedsuite", "deploy", "run", superlink, *rest])
    return (
        f"{resuming}, once `{start}` runs, and `fedsuite deploy supernode` with each "
        f"folder in {kept.resolve() / NODES}"
    )
