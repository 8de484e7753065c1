"""Cohorts: clients that train together, as one batched computation.

A client's work is ordinary code that loads a model, trains it, and reads it. Here each
client of a cohort runs in a greenlet of its own, one at a time, up to its training. There
it waits. When all wait, their trainings are one computation. Then each goes on, with its
trained model in the network that all share. So a method's client need not know of cohorts,
but for what it does to gradients: see
:class:`~fedsuite.training.cohort_steps.BatchedHook`.

Trainings of one network with the same trained arrays go together. Each client has the
mini-batches that it would have alone. Shorter ones are filled up with rows that do not
count, and clients with fewer steps than others leave the computation after their last one.
Results equal those of training alone but for rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from fedsuite.core.errors import ConfigError
from fedsuite.training.cohort_steps import Training, train_together
from fedsuite.training.loop import TrainingOptions, TrainingSummary
from fedsuite.training.stacked import StackedNetwork, obstacle, stacked_network

if TYPE_CHECKING:
    from fedsuite.training.base import FederatedClient

T = TypeVar("T")

Outcome = TrainingSummary | Exception


class Cohort:
    """The place where the clients of one process wait for each other."""

    def __init__(self) -> None:
        self._networks: dict[nn.Module, StackedNetwork] = {}
        self._trained: dict[nn.Module, list[tuple[Tensor, bool]]] = {}
        self._hub: greenlet | None = None

    def add(self, model: nn.Module, example: Tensor) -> None:
        """Take in a network that clients share.

        Parameters
        ----------
        model
            The network.
        example
            One row of features, ``[1, ...]``, on its device.

        Raises
        ------
        ConfigError
            If its copies cannot be computed together.
        """
        if reason := obstacle(model, example):
            raise ConfigError(
                f"key cohort: copies of this model cannot be trained together ({reason}): "
                "choose another model, or set cohort = 1"
            )
        self._networks[model] = stacked_network(model)
        self._trained[model] = [(p, p.requires_grad) for p in model.parameters()]

    @property
    def gathers(self) -> bool:
        """Whether the code that asks is a client's, inside :meth:`together`."""
        return self._hub is not None and getcurrent() is not self._hub

    def train(
        self,
        client: "FederatedClient",
        batches: Iterable[Tensor],
        options: TrainingOptions,
        server_round: int,
    ) -> TrainingSummary:
        """Wait for the other clients, then train; for clients in :meth:`together`.

        Parameters
        ----------
        client
            The client, whose model holds the arrays to start from, and the trained ones
            afterwards.
        batches
            Sample indices of each step.
        options, server_round
            How to train, and the round.
        """
        model, rows = client.model, list(batches)
        if not rows or self._hub is None:
            return TrainingSummary(0.0, 0)
        training = Training(
            model,
            client.train_data,
            rows,
            options,
            server_round,
            client.batched_hook(),
            client.after_step,
        )
        # Other clients find the model as this one did.
        for parameter, trained in self._trained[model]:
            parameter.requires_grad_(trained)
        outcome: Outcome = self._hub.switch(training)
        training.put_back()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def together(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each client's task returns, after trainings as one computation.

        A failed computation raises its error in each client of it.
        """
        self._hub = getcurrent()
        try:
            members = [_Member(task) for task in tasks]
            for member in members:
                member.go_on()
            while waiting := [member for member in members if member.training]:
                for member, outcome in self._outcomes(waiting):
                    member.go_on(outcome)
            return [member.result for member in members]
        finally:
            self._hub = None

    def _outcomes(
        self, waiting: Sequence["_Member[T]"]
    ) -> list[tuple["_Member[T]", Outcome]]:
        """Train the waiting clients, alike ones together; keep their order."""
        trainings = [member.training for member in waiting if member.training]
        groups: dict[tuple[object, ...], list[Training]] = {}
        for training in trainings:
            groups.setdefault(training.likeness(), []).append(training)
        found: dict[int, Outcome] = {}
        for group in groups.values():
            for training, outcome in zip(group, self._trained_group(group), strict=True):
                found[id(training)] = outcome
        return [(member, found[id(member.training)]) for member in waiting]

    def _trained_group(self, group: Sequence[Training]) -> Sequence[Outcome]:
        try:
            return train_together(self._networks[group[0].model], group)
        except Exception as error:
            return [error] * len(group)


class _Member(Generic[T]):
    """A client's task, and the training that it waits for."""

    result: T

    def __init__(self, task: Callable[[], T]) -> None:
        self._greenlet = greenlet(task)
        # Log lines are to name the run.
        self._greenlet.gr_context = copy_context()
        self.training: Training | None = None

    def go_on(self, outcome: Outcome | None = None) -> None:
        """Run the task up to its next training or its end."""
        begun = outcome is not None
        came = self._greenlet.switch(outcome) if begun else self._greenlet.switch()
        self.training = None if self._greenlet.dead else came
        if self._greenlet.dead:
            self.result = came
