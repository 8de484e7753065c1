"""Model of the last round."""

from flwr.app import ArrayRecord
from typing_extensions import override

from fedsuite.core.files import safetensors_bytes
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import Arrays
from fedsuite.results.layout import MODEL
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState


class FinalModel(Callback):
    """Writes ``model.safetensors`` as the rounds end, before anything that may fail then.

    It stands before all other callbacks: what one of them raises in the last round does not
    cost the model, which is what the run was for. A run that another callback stops early
    has it as soon as all have heard of the round.

    Parameters
    ----------
    folder
        The run's folder.
    at_home
        What the model holds beside the arrays that travel; None is nothing.
    """

    def __init__(self, folder: RunFolder, at_home: Arrays | None = None) -> None:
        self._folder = folder
        self._at_home = at_home or {}
        self._written = False

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        if report.server_round == state.num_rounds:
            self.write(state.arrays)

    @override
    def on_end(self, state: RunState, error: BaseException | None) -> None:
        if error is None or state.stop_reason is not None:
            self.write(state.arrays)

    def write(self, arrays: ArrayRecord) -> None:
        """Write the final model, unless it is written, or clients keep theirs."""
        if len(arrays) and not self._written:
            whole = {**self._at_home, **to_arrays(arrays)}
            self._folder.write_bytes(MODEL, safetensors_bytes(whole))
            self._written = True
