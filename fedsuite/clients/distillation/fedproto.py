"""Clients of FedProto and of its form on public data: draw features to others' means."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import (
    FEATURE_WIDTH,
    FEATURES,
    MEAN_OUTPUTS,
    OUTPUTS,
    USUAL,
    MetricValue,
    Reply,
    Request,
    Told,
    correct_predictions,
    fewest_rows,
    num_steps,
)
from fedsuite.clients.distillation.class_tables import ClassTableClient
from fedsuite.clients.distillation.public_exchange import PublicExchangeClient
from fedsuite.models.distillation import leave_one_out
from fedsuite.models.features import check_trained, feature_width, with_features


class FedProtoClient(ClassTableClient):
    """Draws the features of a sample to the global prototype of its class."""

    SENDS: ClassVar[frozenset[str]] = ClassTableClient.SENDS | {
        "feature-width",
        "prototype-accuracy",
    }
    ACTIONS: ClassVar[Mapping[str, str]] = {
        **ClassTableClient.ACTIONS,
        FEATURE_WIDTH: "on_feature_width",
    }

    proto_weight = Told(float)
    proto_aggregation = Told(str)
    _gathers_after = 0
    _steps_taken = 0

    @override
    def row_width(self, request: Request) -> int:
        return feature_width(self.model)

    @override
    def before_training(self, request: Request) -> None:
        options, count = self.training, len(self.train_data)
        fewest = fewest_rows(self.model, self.train_data, count, options)
        once = replace(options, local_epochs=1, local_steps=0)
        epoch, steps = (num_steps(count, how, fewest) for how in (once, options))
        self._steps_taken, self._gathers_after = 0, steps - epoch

    @override
    def after_step(self, model: nn.Module, step: int) -> None:
        self._steps_taken = step

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        embeddings, logits = with_features(model, features)
        loss = self.loss_of_logits(logits, labels)
        if self._steps_taken >= self._gathers_after:
            self.gathered.add(embeddings, labels)
        if self.targets is None or self.proto_weight == 0:
            return loss
        rows, present = self.targets
        return loss + self.proto_weight * prototype_loss(
            embeddings, rows[labels], present[labels]
        )

    @override
    def reported_counts(self, request: Request) -> Tensor:
        present = super().reported_counts(request)
        if self.proto_aggregation != "count":
            return present
        return self._examples(len(present)) * present

    @override
    def on_evaluate(self, request: Request) -> Reply:
        reply = super().on_evaluate(request)
        return Reply(metrics={**reply.metrics, **self._prototype_scores(request)})

    def _prototype_scores(self, request: Request) -> dict[str, MetricValue]:
        """Return the nearest prototype's accuracy, among classes of the training data."""
        targets = self.received_rows(request, feature_width(self.model))
        if targets is None:
            return {}
        rows, present = targets
        candidates = present & (self._examples(len(present)) > 0).to(present.device)
        if not candidates.any():
            return {}
        nearest = NearestPrototype(self.model, rows, candidates)
        scores: dict[str, MetricValue] = {}
        parts = (("", self.test_data), ("validation-", self.validation_data))
        for prefix, data in parts:
            if data is not None and len(data):
                right = correct_predictions(nearest, data)
                scores[f"{prefix}prototype-accuracy"] = float(right.mean())
        return scores

    def _examples(self, num_classes: int) -> Tensor:
        return torch.bincount(self.train_data.labels.cpu(), minlength=num_classes)


class FedProtoPublicClient(PublicExchangeClient):
    """Draws features on public batches to their mean over clients."""

    SENDS: ClassVar[frozenset[str]] = USUAL | {
        f"{OUTPUTS}/{FEATURES}",
        "feature-width",
        "transfer-loss",
    }
    ACTIONS: ClassVar[Mapping[str, str]] = {
        **PublicExchangeClient.ACTIONS,
        FEATURE_WIDTH: "on_feature_width",
    }

    proto_weight = Told(float)
    proto_target = Told(str)

    @override
    def on_feature_width(self, request: Request) -> Reply:
        check_trained(self.model)
        return super().on_feature_width(request)

    @override
    def public_outputs(self, features: Tensor) -> dict[str, Tensor]:
        return {FEATURES: with_features(self.model, features)[0]}

    @override
    def transfer_loss(
        self, request: Request, step: int, outputs: Mapping[str, Tensor]
    ) -> Tensor | None:
        num_clients, weight = self.num_responders, self.proto_weight
        if num_clients < 2 or weight == 0:
            return None
        own = outputs[FEATURES]
        mean = self.received(request, MEAN_OUTPUTS, FEATURES)
        if self.proto_target == "others":
            mean = leave_one_out(mean, own.detach(), num_clients)
        return weight * functional.mse_loss(own, mean.to(own))


class NearestPrototype(nn.Module):
    """A classifier whose score of a class is minus the squared distance to its prototype.

    ``prototypes`` are ``[classes, features]``; ``candidates`` ``[classes]`` may be
    predicted.
    """

    def __init__(self, model: nn.Module, prototypes: Tensor, candidates: Tensor) -> None:
        super().__init__()
        self.model = model
        self._prototypes = prototypes
        self._candidates = candidates

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        embeddings, _ = with_features(self.model, inputs)
        gaps = embeddings.unsqueeze(1) - self._prototypes.to(embeddings)
        scores = -gaps.square().mean(dim=2)
        return scores.masked_fill(~self._candidates, -torch.inf)


def prototype_loss(features: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the mean squared distance of features to prototypes ``[batch, width]``.

    Samples that are not ``present`` ``[batch]``, without a prototype of their class, count
    as 0.
    """
    gaps = (features - prototypes.to(features)) * present.unsqueeze(1)
    return gaps.square().mean()
