"""What sites tell of their columns, in the run's folder."""

from collections.abc import Callable
from dataclasses import replace

from typing_extensions import override

from fedsuite.results.layout import MODEL_FACTS
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState


class ColumnsOfSites(Callback):
    """Notes the sites' scaling, and the hash of their columns: others are refused later.

    Parameters
    ----------
    known
        Returns what is known of the model by now.
    folder
        The run's folder.
    """

    def __init__(self, known: Callable[[], ModelFacts], folder: RunFolder) -> None:
        self._known = known
        self._folder = folder
        self._noted = known()

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        told = state.strategy.directory.columns_hash
        facts = replace(self._known(), columns_hash=told or "")
        if facts != self._noted:
            self._folder.write_json(MODEL_FACTS, facts.as_json())
            self._noted = facts
