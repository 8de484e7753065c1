"""Clients that exchange one row per class."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsuite.client import (
    CLASS_TABLE,
    CLASSES,
    COUNTS,
    ROWS,
    USUAL,
    Arrays,
    Reply,
    Request,
    RunError,
    Told,
    refuse_sequences,
)
from fedsuite.clients.distillation.private_model import PrivateModelClient


class ClassMeans:
    """Means of rows ``[classes, width]`` by class, gathered batch by batch."""

    def __init__(self, num_classes: int, width: int) -> None:
        self._sums = torch.zeros(num_classes, width, dtype=torch.float64)
        self.counts = torch.zeros(num_classes, dtype=torch.int64)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Add rows ``[n, width]`` of samples with these labels."""
        labels = labels.cpu()
        self._sums.index_add_(0, labels, rows.detach().cpu().double())
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def means(self) -> Tensor:
        """Return the means ``[classes, width]``, 0 for classes without a row."""
        return self._sums / self.counts.clamp_min(1).unsqueeze(1)


class ClassTableClient(PrivateModelClient):
    """Trains its own model with the rows that it received, and answers with its own.

    While it trains, a method gathers into ``self.gathered``. ``self.targets`` is None, or
    the received rows ``[classes, width]`` and which classes have one.
    """

    SENDS: ClassVar[frozenset[str]] = USUAL | {
        f"{CLASS_TABLE}/{ROWS}",
        f"{CLASS_TABLE}/{COUNTS}",
    }
    num_classes = Told(int)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refuse_sequences(self.train_data.labels, "this method's tables need")
        self.gathered = ClassMeans(0, 0)
        self.targets: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def row_width(self, request: Request) -> int:
        """Return the length of a row."""

    def before_training(self, request: Request) -> None:
        """Act before the model is trained."""

    def after_training(self, request: Request) -> None:
        """Act on the trained model, such as gathering."""

    def reported_counts(self, request: Request) -> Tensor:
        """Return the counts sent beside the rows: 1 for each class with a row, else 0."""
        return self.gathered.counts > 0

    @override
    def on_train(self, request: Request) -> Reply:
        self._load_for_training(request)
        width = self.row_width(request)
        self.gathered = ClassMeans(self.num_classes, width)
        self.targets = self.received_rows(request, width)
        self.before_training(request)
        summary = self.train_locally(request)
        self.after_training(request)
        table: Arrays = {
            ROWS: self.gathered.means().float().numpy(),
            COUNTS: self.reported_counts(request).numpy().astype("uint32"),
        }
        metrics = {**self.train_metrics(summary), **self._save(request)}
        return Reply({CLASS_TABLE: table}, metrics)

    def received_rows(self, request: Request, width: int) -> tuple[Tensor, Tensor] | None:
        """Return received rows ``[classes, width]`` and which classes have one, or None.

        RunError if the rows have another width or unknown classes.
        """
        if not request.arrays.get(CLASS_TABLE):
            return None
        rows = self.received(request, CLASS_TABLE, ROWS)
        classes = self.received(request, CLASS_TABLE, CLASSES)
        count = self.num_classes
        if rows.shape != (len(classes), width) or bool((classes >= count).any()):
            raise RunError(
                f"client {self.client_id}: received rows of shape {tuple(rows.shape)}, and "
                f"its own are of width {width}, of {count} classes: all clients need the "
                "same"
            )
        table = rows.new_zeros(count, width)
        table[classes] = rows
        present = torch.zeros(count, dtype=torch.bool, device=rows.device)
        present[classes] = True
        return table, present
