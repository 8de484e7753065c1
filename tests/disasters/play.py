"""Plays a plan: starts the server, and resumes it until its run is finished."""

import gc
import io
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import httpx
from flwr.clientapp import ClientApp

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.files import TEMPORARY_PATTERN
from fedsuite.core.keys import Value
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.layout import ATTEMPT, LEDGER, read_manifest
from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import list_checkpoints
from fedsuite.rounds.round_settings import SECURE
from fedsuite.running.server import run_experiment
from fedsuite.training.app import make_client_app
from fedsuite.training.store import FileStore, MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.disasters.disk import Disk, Killed
from tests.disasters.network import Nodes, Wire, WorldGrid
from tests.disasters.remembered import RememberingWorker, Store, remembering
from tests.disasters.world import METHODS, NUM_CLIENTS, NUM_ROUNDS, TIMEOUT_S, Plan, World

_COMMON: Mapping[str, Value] = {
    # The secrets of secure sums stay in one process.
    "workers": 1,
    "dataset": "digits",
    "model": "linear",
    "num-clients": NUM_CLIENTS,
    "num-rounds": NUM_ROUNDS,
    "local-steps": 2,
    "batch-size": 32,
    "device": "cpu",
    "optimizer": "sgd",
    "report": False,
    "round-timeout": TIMEOUT_S,
    "connect-timeout": 3 * TIMEOUT_S,
}
_MOST_ATTEMPTS = 14


class Second(NamedTuple):
    """What became of a second server on the folder.

    Parameters
    ----------
    words
        What it ended with; empty of one that ran.
    late
        Whether the first server had begun to change the run's files before it came.
    """

    words: str
    late: bool


@dataclass
class Played:
    """What a world left.

    Parameters
    ----------
    world
        The world, after all that happened.
    folder
        The run's folder.
    wire
        What the network carried.
    stops
        The one-line errors with which servers ended.
    crash
        A traceback, or how the run got stuck; empty of a run that finished.
    second
        Second servers on the folder.
    ledgers
        Lines of the ledger of noise whenever a server had ended.
    left
        Temporary files that a server left which was not killed.
    attempts
        The manifest's number of the attempt whenever a server had ended.
    failures
        What the manifest says of servers whose run the SuperLink had forgotten.
    """

    world: World
    folder: Path
    wire: Wire
    stops: list[str] = field(default_factory=list)
    crash: str = ""
    second: list[Second] = field(default_factory=list)
    ledgers: list[list[str]] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    attempts: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def states(self) -> Path:
        """Where the clients' states lie."""
        return self.folder.parent.parent / "nodes" if self._own else self.folder / "state"

    @property
    def _own(self) -> bool:
        return self.world.plan.own_processes


_STORE = Store()
_APPS: dict[str, ClientApp] = {}


def experiment_of(plan: Plan, output: Path) -> Experiment:
    """Return the experiment of a plan."""
    places = {"output-dir": str(output), "run-name": "run"}
    return Experiment.from_values(
        {**_COMMON, **METHODS[plan.method], **plan.keys, **places}
    )


def app_of(experiment: Experiment, name: str) -> ClientApp:
    """Return the clients of a method, which keep their rows from world to world."""
    name = f"{name} {experiment['learning-rate']}"
    how = f"{name} {experiment[SECURE]}"
    if how not in _APPS:
        worker = RememberingWorker(experiment, _STORE, name)
        _APPS[how] = make_client_app(
            worker.participant, worker.actions, fingerprints=worker.fingerprints
        )
    return _APPS[how]


def play(plan: Plan, root: Path) -> Played:
    """Play a plan in an empty folder until its run is finished."""
    world = World(plan)
    folder = root / "disk" / "run"
    folder.parent.mkdir()
    played = Played(world, folder, Wire())
    _STORE.trained = played.wire.trained
    disk = Disk(world, folder.parent)
    nodes = Nodes(world, root / "nodes")
    with flower_identity(), remembering(), world.clocks():
        experiment = experiment_of(plan, folder.parent)
        app = app_of(experiment, plan.method)
        restore: Callable[[], None] | None = None
        for world.attempt in range(1, _MOST_ATTEMPTS):
            try:
                if _is_finished(folder):
                    return played
            except FedsuiteError as error:
                played.crash = f"unreadable: {error}"
                return played
            # Who was killed has not told what a bit has changed, and the next server does.
            restore, before = disk.rot() or restore, _temporary(folder)
            disk.revive()
            played.wire.forget_after(_last_checkpoint(folder))
            try:
                _serve(played, experiment, app, disk, nodes)
                restore = None
            except Killed:
                pass
            except KeyboardInterrupt:
                if not _is_interrupted_while_it_cleans(world):
                    played.left |= _temporary(folder) - before
            except FedsuiteError as error:
                played.left |= _temporary(folder) - before
                if isinstance(error.__cause__, httpx.HTTPStatusError):
                    # The SuperLink does not know the run any more. A full disk keeps the
                    # line out of the manifest, and the screen has it.
                    played.failures.append(str(error))
                else:
                    played.stops.append(str(error))
                    of_disk = any(words in str(error) for words in DISK_STOPS)
                    world.process_calm = True
                    world.calm = world.calm or not (of_disk or restore)
                    if restore:
                        restore()
                    restore = None
            except Exception:
                played.crash = traceback.format_exc()
                return played
            finally:
                world.inbox.clear()
                gc.collect(0)
            ended = False
            with suppress(FedsuiteError):
                played.attempts.append(int(read_manifest(folder).get(ATTEMPT) or 0))
                ended = _is_finished(folder)
            # Between a bit that changed and its repair the ledger may be the changed file.
            if (restore is None or ended) and (folder / LEDGER).exists():
                played.ledgers.append((folder / LEDGER).read_text().splitlines())
    if not _is_finished(folder):
        played.crash = f"stuck: {'; '.join(played.stops[-2:])}"
    return played


def _is_interrupted_while_it_cleans(world: World) -> bool:
    """Return whether a server deletes no more: it leaves what one that is killed leaves."""
    during = f" {world.attempt}."
    return any(
        kind == "interrupt" and place.startswith("unlink:") and during in place
        for place, kind in world.fired.items()
    )


DISK_STOPS = ("No space left", "Input/output error")


def _serve(
    played: Played, experiment: Experiment, app: ClientApp, disk: Disk, nodes: Nodes
) -> None:
    """Run one server until it ends, however it does."""
    world, folder = played.world, played.folder
    begun = (folder / "manifest.json").exists()
    memory = MemoryStore(FileStore(folder / "state"))
    own = world.plan.own_processes
    store = FileStore(nodes.states) if own else memory

    def grid() -> WorldGrid:
        return WorldGrid(nodes, played.wire, disk, app, None if own else memory)

    def second() -> None:
        words, late = "", disk.changes
        with _within_second(world):
            try:
                again = experiment.replace(resume=(folder / "manifest.json").exists())
                run_experiment(again, grid(), folder, write=lambda line: None)
            except FedsuiteError as error:
                words = str(error)
        played.second.append(Second(words, late))

    world.second_server = second
    _STORE.target = store
    # A wait for nodes is told on the screen.
    with disk.installed(), redirect_stdout(io.StringIO()):
        resumed = experiment.replace(resume=begun)
        number = world.link + 1 if world.is_retried else None
        run_experiment(resumed, grid(), folder, flwr_run_id=number, write=lambda line: None)
        disk.moment("end:run")


@contextmanager
def _within_second(world: World) -> Iterator[None]:
    world.in_second_server = True
    try:
        yield
    finally:
        world.in_second_server = False


def _temporary(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob(TEMPORARY_PATTERN)}


def _is_finished(folder: Path) -> bool:
    manifest = folder / "manifest.json"
    return manifest.exists() and read_manifest(folder)["status"] == "finished"


def _last_checkpoint(folder: Path) -> int:
    paths = list_checkpoints(folder / CHECKPOINTS)
    return int(paths[-1].stem.removeprefix("round-")) if paths else 0


def undisturbed(played: Played, kinds: frozenset[str]) -> Plan:
    """Return the plan of the same world without the faults of some kinds."""
    kept = {p: k for p, k in played.world.fired.items() if k not in kinds}
    return replace(played.world.plan, faults=kept)
