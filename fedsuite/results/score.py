"""A run's main score: the number of each client that comparisons and reports are about.

Everything that is printed or drawn of a score takes its name, unit, scale and direction
from its declaration (:mod:`fedsuite.core.tasks`), and no page says accuracy by itself.
"""

from collections.abc import Mapping
from dataclasses import replace

from fedsuite.core.keys import AUTO, Value
from fedsuite.core.tasks import (
    ACCURACY,
    CLASSIFICATION,
    TASKS,
    Score,
    Task,
    score_of_column,
)
from fedsuite.data import DATASETS


def score_of(column: str = ACCURACY.column) -> Score:
    """Return the score in a column; one that is not declared is read as an accuracy."""
    declared = score_of_column(column) or ACCURACY
    before = column.removesuffix(declared.column)
    title = before.replace("_", " ") + declared.title if before != column else column
    return replace(declared, name=column, title=title)


def task_of(experiment: Mapping[str, Value]) -> Task:
    """Return the task of an experiment; classification where nobody knows it."""
    name, dataset = (str(experiment.get(key, AUTO)) for key in ("task", "dataset"))
    if name == AUTO and dataset in DATASETS.ours:
        name = DATASETS.ours[dataset].task
    return TASKS.get(name, CLASSIFICATION)


def main_score(experiment: Mapping[str, Value]) -> Score:
    """Return the score that a run is shown by: that by which ``auto`` chooses models."""
    task = task_of(experiment)
    try:
        return task.main_of(str(experiment.get("scores", AUTO)))
    except ValueError:  # the folder of another fedsuite
        return task.main
