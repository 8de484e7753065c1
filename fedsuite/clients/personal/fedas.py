"""Client of FedAS: draws the received body to its own last features, then trains."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    Reply,
    Request,
    Told,
    TrainingSummary,
    features_over,
    load_arrays,
    model_arrays,
    probe_model,
    refuse_sequences,
)
from fedsuite.clients.personal.fedpac import class_means
from fedsuite.clients.personal.own_model import OwnModelClient
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.data import Split
from fedsuite.models.features import with_features


class FedASClient(OwnModelClient):
    """Keeps its whole model; completes what it receives with its own head."""

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    SENDS: ClassVar[frozenset[str]] = OwnModelClient.SENDS | {"alignment-loss", "fisher"}
    alignment_epochs = Told(int)
    alignment_rate = Told(float)
    fedas_weights = Told(str)
    _prototypes: Tensor | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refuse_sequences(self.train_data.labels, "method fedas: its prototypes need")

    @override
    def on_train(self, request: Request) -> Reply:
        aligned = self._align(request)
        summary = self.train_locally(request)
        metrics = self.train_metrics(summary)
        if aligned.num_steps:
            metrics["alignment-loss"] = aligned.loss
        if self.fedas_weights != "examples":
            metrics["fisher"] = self._fisher()
        stored = self.save_state(request, model_arrays(self.model))
        sent = model_arrays(self.model, request.arrays[ARRAYS])
        return Reply({ARRAYS: sent}, {**metrics, **stored})

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._prototypes is None:
            return super().loss(model, features, labels)
        gaps = with_features(model, features)[0] - self._prototypes[labels]
        return (gaps.square().mean(dim=1) / torch.bincount(labels)[labels]).sum()

    def _align(self, request: Request) -> TrainingSummary:
        """Complete the received body with the own head, and draw it to the own features."""
        self.load_own(request)
        own_features = features_over(self.model, self.train_data)
        load_arrays(self.model, request.arrays[ARRAYS])
        if self.alignment_epochs == 0 or len(own_features) == 0:
            return TrainingSummary(0.0, 0)
        labels = self.train_data.labels.cpu().numpy()
        means = class_means(
            own_features.cpu().numpy().astype(np.float64), labels, int(labels.max()) + 1
        )
        self._prototypes = torch.tensor(means).to(own_features)
        options = self.training.at_one_rate(
            local_epochs=self.alignment_epochs,
            local_steps=0,
            learning_rate=self.alignment_rate,
            optimizer="sgd",
            momentum=0.0,
            weight_decay=0.0,
        )
        head = frozenset(self._names) - frozenset(request.arrays[ARRAYS])
        try:
            return self.train_locally(
                request, "alignment-batches", training=options, frozen=head
            )
        finally:
            self._prototypes = None

    def _fisher(self) -> float:
        """Return tau, over mini-batches in the order of the rows, or over single rows."""
        data, by_row = self.train_data, self.fedas_weights == "samples"
        size = 1 if by_row else self.training.batch_size or max(len(data), 1)
        total = 0.0
        for start in range(0, len(data), size):
            rows = slice(start, start + size)
            part = Split(data.features[rows], data.labels[rows])
            _, gradient = probe_model(self.model, part, self._plain_loss)
            squares = (np.square(g, dtype=np.float64).sum() for g in gradient.values())
            total += float(sum(squares))
        return total / max(len(data), 1) if by_row else total
