"""Sweeps whose runs happen in this process."""

from typing import Any

import pytest

from fedsuite.core.errors import FedsuiteError
from fedsuite.experiment.experiment import parse_assignment
from fedsuite.sweeps.workers import Outcome


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Do the runs in this process, and note their names."""
    from fedsuite.engines.api import resume, run

    names: list[str] = []

    def run_here(tasks: Any, workers: int, on_end: Any, *others: Any) -> None:
        for task in tasks:
            names.append(task.name)
            error = None
            try:
                if task.arguments[0] == "resume":
                    resume(task.arguments[1])
                else:
                    settings = dict(map(parse_assignment, task.arguments[3::2]))
                    run(task.arguments[1], overrides=settings)
            except FedsuiteError as caught:
                error = str(caught)
            on_end(Outcome(task.name, error, 0.0))

    monkeypatch.setattr("fedsuite.sweeps.sweep.run_tasks", run_here)
    return names
