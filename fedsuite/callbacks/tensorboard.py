"""TensorBoard events of each round."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedsuite.rounds.events import Callback, RoundReport, RunState

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Callback):
    """Writes scalars, and the distribution of accuracies over clients.

    Parameters
    ----------
    folder
        Folder of the events, for ``tensorboard --logdir``, also while the run goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def on_start(self, state: RunState) -> None:
        """Open the writer; a killed run's events after the current round become void."""
        from torch.utils.tensorboard import SummaryWriter

        purge = state.server_round + 1 if state.server_round else None
        self._writer = SummaryWriter(str(self._folder), purge_step=purge)

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Write the round."""
        if self._writer is None:
            return
        for name, value in report.metrics.items():
            if name != "round":
                self._writer.add_scalar(name, value, report.server_round)
        accuracies = report.evaluate.column("accuracy") if report.evaluate else []
        if accuracies:
            import numpy as np

            self._writer.add_histogram(
                "accuracy", np.asarray(accuracies), report.server_round
            )
        # The writer queues events and may flush only every two minutes.
        self._writer.flush()

    def on_end(self, state: RunState, error: BaseException | None) -> None:
        """Close the writer."""
        if self._writer is not None:
            self._writer.close()
