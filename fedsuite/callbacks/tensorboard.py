"""The tracker TensorBoard: events in the run's folder."""

from torch.utils.tensorboard import SummaryWriter

from fedsuite.callbacks.tracking import Flat, TrackedRun, numbers
from fedsuite.core.keys import toml_text
from fedsuite.core.tasks import SCORES
from fedsuite.rounds.events import RoundReport

FOLDER = "tensorboard"


class TensorBoard:
    """Writes scalars, and the distributions of scores over clients.

    The run's folder ``tensorboard`` is for ``tensorboard --logdir``, also meanwhile.
    """

    run_id = ""

    def __init__(self, run: TrackedRun) -> None:
        # A killed run's events after the current round become void.
        purge = run.server_round + 1 if run.server_round else None
        self._writer = SummaryWriter(str(run.folder.path / FOLDER), purge_step=purge)
        keys = [f"    {key} = {toml_text(value)}" for key, value in run.experiment.items()]
        self._writer.add_text("experiment", "\n".join(keys), run.server_round)
        self._last = run.server_round

    def log(self, report: RoundReport) -> None:
        """Write the round."""
        self._last = report.server_round
        for name, value in numbers(report).items():
            self._writer.add_scalar(name, value, report.server_round)
        for score in SCORES.values():
            scores = report.evaluate.accuracies(score.column) if report.evaluate else []
            if scores:
                import numpy as np

                self._writer.add_histogram(
                    score.column, np.asarray(scores), report.server_round
                )
        # The writer queues events and may flush only every two minutes.
        self._writer.flush()

    def close(self, *, finished: bool, summary: Flat) -> None:
        """Write the summary, and close the writer."""
        for name, value in summary.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, self._last)
            else:
                self._writer.add_scalar(name, value, self._last)
        self._writer.close()


tracker = TensorBoard
