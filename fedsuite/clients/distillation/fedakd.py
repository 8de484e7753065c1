"""Client of FedAKD: a private local model beside the copy of the global one."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedsuite.messages.records import ARRAYS, SELECTED, MetricValue, Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.distillation import distillation_loss, select_correct
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluation import chosen_rows
from fedsuite.training.loop import TrainingSummary
from fedsuite.training.scoring import prefixed
from fedsuite.training.told import Told

__all__ = ["FedAKDClient", "distillation_loss", "select_correct"]

NO_STEP = TrainingSummary(0.0, 0)


class FedAKDClient(FederatedClient):
    """Teaches its local model by the received one, then the received one by the local.

    The model handed to the constructor is where the local one starts, buffers included.
    The local model is stored and never sent. How to distil comes with the message; see
    :class:`fedsuite.strategies.distillation.fedakd.FedAKD`.
    """

    global_to_local_weight = Told(float)
    local_to_global_weight = Told(float)
    distillation_temperature = Told(float)
    confidence_threshold = Told(float)
    fedakd_order = Told(str)
    fedakd_ablation = Told(str)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._initial = model_arrays(self.model)
        self._teacher: nn.Module | None = None
        self._weight = 0.0

    def on_train(self, request: Request) -> Reply:
        """Train the local model and store it, then a copy of the received one; send that.

        Afterwards ``self.model`` is what was sent.
        """
        load_arrays(self.model, request.arrays[ARRAYS])
        received = model_arrays(self.model)
        teacher = copy.deepcopy(self.model).eval().requires_grad_(False)
        rows, first = self._train_local(request, teacher)
        local = model_arrays(self.model)
        load_arrays(teacher, local)
        load_arrays(self.model, received)
        second = NO_STEP
        if rows is None or len(rows):
            with self._taught(teacher, self.local_to_global_weight):
                second = self.train_locally(request, "global-batches", rows=rows)
        return Reply(
            {ARRAYS: model_arrays(self.model, request.arrays[ARRAYS])},
            {
                **self._losses(first, second),
                SELECTED: len(self.train_data) if rows is None else len(rows),
                **self.save_state(request, local),
            },
        )

    def on_evaluate(self, request: Request) -> Reply:
        """Score the local model; tell loss and accuracy of the received one too."""
        shared = super().on_evaluate(request).metrics
        received = model_arrays(self.model)
        load_arrays(self.model, self.load_state(request) or self._initial)
        own = self.evaluation().metrics
        load_arrays(self.model, received)
        return Reply(metrics={**own, **prefixed("global", shared)})

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """Return the labels' loss, and where there is a teacher its own on top."""
        logits = model(features)
        loss = self.loss_of_logits(logits, labels)
        if self._teacher is None:
            return loss
        with torch.no_grad():
            target = self._teacher(features)
        return loss + self._weight * distillation_loss(
            logits, target, self.distillation_temperature
        )

    def _train_local(
        self, request: Request, teacher: nn.Module
    ) -> tuple[Tensor | None, TrainingSummary]:
        """Make ``self.model``, which is the received one, the new local one.

        Returns the rows that it selects, None for all of them, and what training did.
        """
        summary, own = NO_STEP, self.load_state(request)
        # In the authors' order the local model first learns after the first aggregation.
        waits = self.fedakd_order == "code" and not own
        if self.fedakd_ablation != "single-dist" or waits:
            load_arrays(self.model, own or self._initial)
        if self.fedakd_ablation != "single-dist" and not waits:
            with self._taught(teacher, self.global_to_local_weight):
                summary = self.train_locally(request)
        if self.fedakd_ablation == "all-data" or waits:
            return None, summary
        choose = partial(select_correct, confidence=self.confidence_threshold)
        return chosen_rows(self.model, self.train_data, choose), summary

    @contextmanager
    def _taught(self, teacher: nn.Module, weight: float) -> Iterator[None]:
        """Add a teacher's loss to the hook ``loss``; at weight 0 nobody asks it."""
        self._teacher = teacher if weight else None
        self._weight = weight
        try:
            yield
        finally:
            self._teacher = None

    def _losses(
        self, first: TrainingSummary, second: TrainingSummary
    ) -> dict[str, MetricValue]:
        """Return the metrics of both trainings, and of each that took a step."""
        named = {"local-loss": first, "distilled-loss": second}
        own = {name: s.loss for name, s in named.items() if s.num_steps}
        return {**self.train_metrics(first.then(second)), **own}
