"""Checkpoints every N rounds and at the end."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from typing_extensions import override

from fedsuite.core.errors import RunError, described
from fedsuite.core.files import make_folder, remove_file
from fedsuite.results.writer import CHECKPOINTS, RunFolder
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints
from fedsuite.rounds.events import Callback, RoundReport, RunState


@runtime_checkable
class Remembers(Protocol):
    """A callback whose state must survive a resume."""

    name: str

    def remember(self) -> Any:
        """Return a JSON value, or a :data:`~fedsuite.rounds.stage.State` with arrays."""

    def recall(self, value: Any) -> None:
        """Restore the state that :meth:`remember` returned."""


@runtime_checkable
class PersistsClients(Protocol):
    """A grid that keeps clients' stored state in memory until a checkpoint needs it."""

    def persist_clients(self, versions: Mapping[int, str]) -> None:
        """Write these versions to disk, beside the last checkpoint's versions."""

    def prune_clients(self, versions: Mapping[int, str]) -> None:
        """Delete from disk all but these versions, comma-separated for each client."""


class CheckpointWriter(Callback):
    """Writes checkpoints and deletes those that are no longer needed.

    Clients keep what the kept checkpoints need of their states.

    Parameters
    ----------
    folder
        The run's folder.
    fingerprint
        Fingerprint of the experiment.
    every
        Rounds between checkpoints; the last round always has one. 0 writes none.
    keep
        Number of newest checkpoints to keep.
    others
        The other callbacks, some of which have a state.
    """

    def __init__(
        self,
        folder: RunFolder,
        fingerprint: str,
        *,
        every: int,
        keep: int = 2,
        others: Sequence[Callback] = (),
    ) -> None:
        self._run_folder = folder
        self._folder = folder.path / CHECKPOINTS
        self._fingerprint = fingerprint
        self._every = every
        self._keep = max(keep, 1)
        self._remembering = [other for other in others if isinstance(other, Remembers)]

    def recall(self, checkpoint: Checkpoint) -> None:
        """Restore the other callbacks' states; RunError of what is not theirs."""
        for other in self._remembering:
            try:
                if other.name in checkpoint.callbacks:
                    other.recall(checkpoint.callbacks[other.name])
            except (LookupError, TypeError, ValueError, OverflowError) as error:
                raise RunError(
                    f"the checkpoint of round {checkpoint.server_round} does not hold what "
                    f"{other.name} remembers: {described(error)}: start a new run"
                ) from error

    @override
    def on_start(self, state: RunState) -> None:
        self._tidy(state)

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        last = report.server_round == state.num_rounds or state.stop_reason is not None
        if self._every and (last or report.server_round % self._every == 0):
            self.write(state)

    def write(self, state: RunState) -> None:
        """Write a checkpoint now."""
        strategy = state.strategy
        if isinstance(state.grid, PersistsClients):
            state.grid.persist_clients(strategy.client_versions)
        make_folder(self._folder)
        # A checkpoint must not survive rounds whose lines are lost.
        self._run_folder.sync()
        remembered = {other.name: other.remember() for other in self._remembering}
        # A damaged checkpoint leaves the one before, with all that it needs of clients.
        newest = len(strategy.checkpoint_versions)
        earlier = strategy.checkpoint_versions[max(0, newest + 1 - self._keep) :]
        latest = Checkpoint.capture(state, self._fingerprint, remembered, earlier)
        latest.save(self._folder)
        strategy.keep_states_of([*earlier, latest.client_versions])
        self._tidy(state)

    def _tidy(self, state: RunState) -> None:
        """Delete files that no kept checkpoint needs."""
        if isinstance(state.grid, PersistsClients):
            state.grid.prune_clients(state.strategy.kept_versions)
        for path in list_checkpoints(self._folder)[: -self._keep]:
            remove_file(path)
