"""How losses and scores of the declared tasks are computed.

:mod:`fedsuite.core.tasks` declares the tasks. The file that a task's ``module`` names has
two functions:

``loss(name, options, labels)``
    Returns a :data:`~fedsuite.training.losses.LossFunction` for one of the task's losses:
    the mean loss of a mini-batch from model, features and labels. ``options`` are the
    :class:`~fedsuite.training.loop.TrainingOptions`, ``labels`` all training labels of the
    client.
``scores(names, outputs, labels, options)``
    Returns the named scores by name, on the CPU: ``outputs`` are the model's on all rows,
    ``labels`` theirs. A score that is undefined on these rows is NaN. Names of
    ``Task.lists`` give several entries each.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from torch import Tensor

from fedsuite.core.tasks import TASKS
from fedsuite.training.losses import LossFunction

if TYPE_CHECKING:
    from fedsuite.training.loop import TrainingOptions


class TaskModule(Protocol):
    """A file that computes losses and scores."""

    def loss(self, name: str, options: "TrainingOptions", labels: Tensor) -> LossFunction:
        """Return a loss of a client with these training labels."""

    def scores(
        self,
        names: Sequence[str],
        outputs: Tensor,
        labels: Tensor,
        options: "TrainingOptions",
    ) -> Mapping[str, float]:
        """Return the named scores; NaN where one is undefined."""


def module_of(task: str) -> TaskModule:
    """Return the file that computes a task's losses and scores."""
    return cast(TaskModule, import_module(TASKS[task].module))
