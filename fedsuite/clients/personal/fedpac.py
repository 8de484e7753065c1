"""Client of FedPAC: head first, then a body whose features are drawn to prototypes.

Before training, with the received body and the own head, and with n_c examples of class c,
pi_c = n_c / n, features z of mean mu_c and mean squared norm q_c in class c:

    H = rows pi_c mu_c,    V = (1 / n) sum_c (pi_c q_c - pi_c^2 ||mu_c||^2).

Features are what enters the head, in evaluation mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    STATISTICS,
    Reply,
    Request,
    RunError,
    Told,
    TrainingSummary,
    features_over,
    load_arrays,
    model_arrays,
    refuse_sequences,
)
from fedsuite.clients.personal.own_model import OwnModelClient
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.models.groups import head_module, parameter_groups

Floats = NDArray[np.float64]


def class_means(features: Floats, labels: NDArray[np.int64], classes: int) -> Floats:
    """Return the mean feature of each class, ``[classes, features]``; 0 without any."""
    sums = np.zeros((classes, features.shape[1]))
    np.add.at(sums, labels, features)
    counts = np.bincount(labels, minlength=classes)
    means: Floats = sums / np.maximum(counts, 1)[:, np.newaxis]
    return means


def scaled_means(features: Floats, labels: NDArray[np.int64], classes: int) -> Floats:
    """Return H, ``[classes, features]``; 0 of no samples."""
    counts = np.bincount(labels, minlength=classes)
    shares = counts / max(len(labels), 1)
    return shares[:, np.newaxis] * class_means(features, labels, classes)


def feature_variance(features: Floats, labels: NDArray[np.int64], classes: int) -> float:
    """Return V, >= 0; 0 of no samples."""
    count = max(len(labels), 1)
    # The sum over c of pi_c q_c is the mean squared norm of all features.
    square = float(np.square(features).sum()) / count
    within = square - float(np.square(scaled_means(features, labels, classes)).sum())
    return max(within, 0.0) / count


class FedPACClient(OwnModelClient):
    """Trains the own head, then the received body, and reports class statistics.

    The head comes with the message; a client that never took part has the initial one.
    """

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    SENDS: ClassVar[frozenset[str]] = OwnModelClient.SENDS | {
        "head",
        f"{STATISTICS}/prototypes",
        f"{STATISTICS}/scaled-means",
        f"{STATISTICS}/counts",
        "feature-variance",
    }
    KEEPS_STATE = False

    alignment = Told(float)
    head_epochs = Told(int)
    head_learning_rate = Told(float)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refuse_sequences(self.train_data.labels, "method fedpac: its prototypes need")
        groups = parameter_groups(self.model)
        self._body = groups.body
        self._head = frozenset(groups.head)
        self._module = head_module(self.model, groups)
        self._features: Tensor | None = None
        self._targets: tuple[Tensor, Tensor] | None = None

    @override
    def on_train(self, request: Request) -> Reply:
        self.load_own(request)
        labels = self.train_data.labels.cpu().numpy()
        features = self.features()
        classes = self._weight().shape[0]
        variance = feature_variance(features, labels, classes)
        statistics = {"scaled-means": scaled_means(features, labels, classes)}
        summary = self._train_in_turns(request)
        statistics["prototypes"] = class_means(self.features(), labels, classes)
        arrays = {name: a.astype(np.float32) for name, a in statistics.items()}
        arrays["counts"] = np.bincount(labels, minlength=classes).astype(np.uint32)
        return Reply(
            {
                ARRAYS: model_arrays(self.model, request.arrays[ARRAYS]),
                "head": model_arrays(self.model, self._head),
                "statistics": arrays,
            },
            {**self.train_metrics(summary), "feature-variance": variance},
        )

    @override
    def load_own(self, request: Request) -> None:
        head = request.arrays.get("head", {})
        load_arrays(self.model, {**self._initial, **head, **request.arrays[ARRAYS]})

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy, and while the body trains the alignment too.

        The alignment is the mean over batch and feature dimension.
        """
        self._features = None
        mean = super().loss(model, features, labels)
        if self._targets is None or self._features is None:
            return mean
        prototypes, present = self._targets
        gaps = (self._features - prototypes[labels]) * present[labels].unsqueeze(1)
        return mean + self.alignment * gaps.square().mean()

    def features(self) -> Floats:
        """Return what enters the head for each training sample, ``[n, features]``."""
        inputs = features_over(self.model, self.train_data)
        return inputs.cpu().numpy().astype(np.float64)

    def _train_in_turns(self, request: Request) -> TrainingSummary:
        options = replace(
            self.training,
            local_epochs=self.head_epochs,
            local_steps=0,
            learning_rate=self.head_learning_rate,
        )
        first = self.train_locally(
            request, "head-batches", training=options, frozen=self._body
        )
        with self._aligned(request), self._watched():
            return first.then(self.train_locally(request, frozen=self._head))

    @contextmanager
    def _aligned(self, request: Request) -> Iterator[None]:
        """Add the alignment to the loss where there are prototypes."""
        sent = request.arrays.get("prototypes")
        if sent is not None and self.alignment > 0:
            device = self.train_data.features.device
            means = torch.tensor(sent["means"], device=device)
            self._targets = means, torch.tensor(sent["present"], device=device).to(means)
        try:
            yield
        finally:
            self._targets = None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Keep the head's input in the first forward pass after a reset.

        A loss may make more passes, on other views of the batch.
        """

        def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if self._features is None:
                self._features = inputs[0]

        handle = self._module.register_forward_pre_hook(keep)
        try:
            yield
        finally:
            handle.remove()
            self._features = None

    def _weight(self) -> Tensor:
        for parameter in self._module.parameters():
            if parameter.dim() == 2:
                return parameter
        raise RunError(f"client {self.client_id}: FedPAC needs a linear layer as head")
