"""What sites tell of their columns, in the run's folder."""

from dataclasses import replace

from typing_extensions import override

from fedsuite.data import FederatedData
from fedsuite.results.layout import MODEL_FACTS
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState


class ColumnsOfSites(Callback):
    """Notes the sites' scaling, and the hash of their columns: others are refused later."""

    def __init__(self, data: FederatedData, folder: RunFolder) -> None:
        self._data = data
        self._folder = folder
        self._noted = ModelFacts.of(data)

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        told = state.strategy.directory.columns_hash
        facts = replace(ModelFacts.of(self._data), columns_hash=told or "")
        if facts != self._noted:
            self._folder.write_json(MODEL_FACTS, facts.as_json())
            self._noted = facts
