"""Clients that tell a row a class of what training found, and learn from others' rows."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsuite.clients.distillation.private_model import PrivateModelClient
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.messages.records import (
    CLASS_TABLE,
    CLASSES,
    COUNTS,
    EVALUATE,
    ROWS,
    TRAIN,
    Arrays,
    Reply,
    Request,
)
from fedsuite.training.told import Told


class ClassMeans:
    """Means of rows by class, gathered batch by batch.

    Parameters
    ----------
    num_classes, width
        Shape of the table.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        self._sums = torch.zeros(num_classes, width, dtype=torch.float64)
        self.counts = torch.zeros(num_classes, dtype=torch.int64)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Take in rows ``[n, width]`` of samples with these labels."""
        labels = labels.cpu()
        self._sums.index_add_(0, labels, rows.detach().cpu().double())
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def means(self) -> Tensor:
        """Return the means ``[classes, width]``, 0 for classes without a row."""
        return self._sums / self.counts.clamp_min(1).unsqueeze(1)


class ClassTableClient(PrivateModelClient):
    """Trains its own model with the rows that it received, and answers with its own.

    A method gathers into ``self.gathered`` while it trains, and finds what it received in
    ``self.targets``: rows ``[classes, width]`` and whether there is one, or None.
    """

    num_classes = Told(int)

    ACTIONS: ClassVar[Mapping[str, str]] = {TRAIN: "on_train", EVALUATE: "on_evaluate"}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.train_data.labels.ndim > 1:
            raise ConfigError(
                "this method's tables need one class a row, which this data set of "
                "sequences does not have; choose another method or data set"
            )
        self.gathered = ClassMeans(0, 0)
        self.targets: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def row_width(self, request: Request) -> int:
        """Return the length of a row."""

    def before_training(self, request: Request) -> None:
        """Do something before the model is trained."""

    def after_training(self, request: Request) -> None:
        """Do something with the trained model, such as gathering."""

    def told_counts(self, request: Request) -> Tensor:
        """Return what is told beside the rows: 1 for each class that has one, else 0."""
        return self.gathered.counts > 0

    def on_train(self, request: Request) -> Reply:
        """Train with the received rows, store the model, and tell the own rows."""
        self._load_for_training(request)
        width = self.row_width(request)
        self.gathered = ClassMeans(self.num_classes, width)
        self.targets = self.received_rows(request, width)
        self.before_training(request)
        summary = self.train_locally(request)
        self.after_training(request)
        table: Arrays = {
            ROWS: self.gathered.means().float().numpy(),
            COUNTS: self.told_counts(request).numpy().astype("uint32"),
        }
        metrics = {**self.train_metrics(summary), **self._save(request)}
        return Reply({CLASS_TABLE: table}, metrics)

    def received_rows(self, request: Request, width: int) -> tuple[Tensor, Tensor] | None:
        """Return the received rows ``[classes, width]``, and which there are.

        None where the message has none.

        Raises
        ------
        RunError
            If they are of another width, or of classes that there are not.
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
