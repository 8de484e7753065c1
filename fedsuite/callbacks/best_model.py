"""Model of the round with the best metric."""

from typing import Any

from fedsuite.callbacks.early_stop import Best
from fedsuite.core.files import safetensors_bytes
from fedsuite.messages.array_records import to_arrays
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState

FILE = "best-model.safetensors"


class BestModel(Callback):
    """Writes ``best-model.safetensors`` whenever the metric improves.

    A model chosen on test data looks better on the same test data. So the summary names the
    round and the metric of the choice.

    Parameters
    ----------
    metric
        Name in ``rounds.jsonl``.
    folder
        The run's folder.
    """

    name = "best-model"

    def __init__(self, metric: str, folder: RunFolder) -> None:
        self.best = Best(metric)
        self.follows = metric
        self._folder = folder

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Write the model if it is the best so far."""
        if self.best.improved(report):
            self._folder.write_bytes(FILE, safetensors_bytes(to_arrays(state.arrays)))

    def remember(self) -> Any:
        """Return the best value and the round of the best value."""
        return [self.best.value, self.best.server_round]

    def recall(self, value: Any) -> None:
        """Restore the state that :meth:`remember` returned."""
        self.best.value, self.best.server_round = value
