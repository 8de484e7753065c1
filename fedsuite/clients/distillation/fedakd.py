"""Client of FedAKD: a private local model beside the copy of the global one."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    SELECTED,
    MetricValue,
    Reply,
    Request,
    Told,
    TrainingSummary,
    chosen_rows,
    load_arrays,
    model_arrays,
)
from fedsuite.clients.personal.own_model import PersonalModelClient
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.models.distillation import distillation_loss, select_correct

NO_STEP = TrainingSummary(0.0, 0)


class FedAKDClient(PersonalModelClient):
    """Teaches its local model by the received one, then the received one by the local.

    The local model, buffers included, starts from the constructor's and is never sent.
    """

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    SENDS: ClassVar[frozenset[str]] = PersonalModelClient.SENDS | {
        "local-loss",
        "distilled-loss",
        SELECTED,
    }
    global_to_local_weight = Told(float)
    local_to_global_weight = Told(float)
    distillation_temperature = Told(float)
    confidence_threshold = Told(float)
    fedakd_order = Told(str)
    fedakd_ablation = Told(str)
    _teacher: nn.Module | None = None
    _weight = 0.0

    @override
    def on_train(self, request: Request) -> Reply:
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

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
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
        """Turn ``self.model`` from the received model into the new local one.

        Returns the selected rows, None for all, and the summary of training.
        """
        summary = NO_STEP
        # In the authors' order the local model first learns after the first aggregation.
        waits = self.fedakd_order == "code" and not request.start_version
        if self.fedakd_ablation != "single-dist" or waits:
            self.load_own(request)
        if self.fedakd_ablation != "single-dist" and not waits:
            with self._taught(teacher, self.global_to_local_weight):
                summary = self.train_locally(request)
        if self.fedakd_ablation == "all-data" or waits:
            return None, summary
        choose = partial(select_correct, confidence=self.confidence_threshold)
        return chosen_rows(self.model, self.train_data, choose), summary

    @contextmanager
    def _taught(self, teacher: nn.Module, weight: float) -> Iterator[None]:
        """Add a teacher's loss to the hook ``loss``, unless its weight is 0."""
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
