"""Model of the round with the best metric."""

import json
from typing import Any

from typing_extensions import override

from fedsuite.callbacks.early_stop import Best
from fedsuite.core.files import safetensors_bytes
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import Arrays
from fedsuite.results.layout import BEST_MODEL
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState


class BestModel(Callback):
    """Writes ``best-model.safetensors`` whenever the metric improves.

    A model chosen on test data looks better on the same test data. So the file, and the
    run's summary after it, name the round and the metric of the choice.

    Checkpoints hold the model too. A run that goes on from one has the best model of the
    rounds until then, whatever was written later.

    Parameters
    ----------
    metric
        Name in ``rounds.jsonl``.
    folder
        The run's folder.
    at_home
        What the model holds beside the arrays that travel; None is nothing.
    """

    name = "best-model"

    def __init__(
        self, metric: str, folder: RunFolder, at_home: Arrays | None = None
    ) -> None:
        self.best = Best(metric)
        self._folder = folder
        self._at_home = at_home or {}
        self._arrays: Arrays = {}

    @override
    def on_start(self, state: RunState) -> None:
        if self._arrays:
            self._write()
        else:
            self._folder.remove(BEST_MODEL)

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        if self.best.improved(report):
            self._arrays = to_arrays(state.arrays)
            self._write()

    def remember(self) -> Any:
        """Return the best value and its model, empty before there is one."""
        return {"best": self.best.remember(), "model": self._arrays}

    def recall(self, value: Any) -> None:
        """Restore the state that :meth:`remember` returned."""
        self.best.recall(*value["best"])
        self._arrays = dict(value["model"])

    def _write(self) -> None:
        choice = {
            "round": self.best.server_round,
            "metric": self.best.metric,
            "value": self.best.value,
        }
        whole = {**self._at_home, **self._arrays}
        data = safetensors_bytes(whole, json.dumps(choice))
        self._folder.write_bytes(BEST_MODEL, data)
