"""What sites tell of their columns, in the run's folder."""

from dataclasses import replace

from typing_extensions import override

from fedsuite.results.layout import MODEL_FACTS
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState


class ColumnsOfSites(Callback):
    """Notes the hash of the sites' columns, so that other columns are refused later."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._noted = False

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        told = state.strategy.directory.columns_hash
        if self._noted or not told:
            return
        facts = replace(ModelFacts.read(self._folder.path), columns_hash=told)
        self._folder.write_json(MODEL_FACTS, facts.as_json())
        self._noted = True
