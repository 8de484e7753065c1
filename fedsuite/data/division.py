"""The base of partitioners: what a partitioner gets and returns, and the checks of all."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from fedsuite.core.errors import DataError
from fedsuite.core.rng import numpy_stream
from fedsuite.core.settings import Settings
from fedsuite.data.rows import Rows
from fedsuite.data.shift_report import ClientShift
from fedsuite.data.specs import IntArray


@dataclass(frozen=True)
class Samples:
    """Labels, natural owners and inputs of the rows to divide.

    Parameters
    ----------
    train_labels, test_labels
        Class of each row of the two parts, >= 0.
    train_ids, test_ids
        Natural owner of each row, or ``None`` where the data set names none.
    train_features, test_features
        Inputs, ``[rows, ...]``; ``None`` for partitioners that ignore inputs.
    """

    train_labels: IntArray
    test_labels: IntArray
    train_ids: IntArray | None = None
    test_ids: IntArray | None = None
    train_features: npt.NDArray[Any] | None = None
    test_features: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Partition:
    """Rows of each client.

    Parameters
    ----------
    train, test
        Positions of each client's rows in the training part and in the test part.
    shifts
        Measured covariate shift of each client; empty without such a shift. Of all its
        rows, those for validation too.
    validation
        Positions in the training part of each client's validation rows, which ``train``
        lacks; empty where clients have none.
    owners
        Natural owner of each client's rows, where each client is one owner.
    """

    train: Sequence[IntArray]
    test: Sequence[IntArray]
    shifts: tuple[ClientShift, ...] = ()
    validation: Sequence[IntArray] = ()
    owners: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for part in ("train", "test", "validation"):
            object.__setattr__(self, part, Rows.of(getattr(self, part)))


class Division(Settings, ABC):
    """One way to divide rows among clients; the keys are those of this way alone.

    Attributes
    ----------
    NAME
        Value of the key ``partitioner``.
    EXHAUSTIVE
        Whether every row goes to a client. The data's description counts unused rows.
    BY_CLASS
        Whether rows must have one class each.
    USES_FEATURES
        Whether inputs are looked at.
    SHARES_ROWS
        Whether a row may go to several clients, or several times to one client.
    """

    NAME: ClassVar[str]
    EXHAUSTIVE: ClassVar[bool] = True
    BY_CLASS: ClassVar[bool] = True
    USES_FEATURES: ClassVar[bool] = False
    SHARES_ROWS: ClassVar[bool] = False

    @property
    def may_lack_a_part(self) -> bool:
        """Whether a client may have training rows alone, or test rows alone."""
        return False

    @abstractmethod
    def _draw(self, samples: Samples, num_clients: int, rng: Generator) -> Partition:
        """Return a partition, its positions in any order and not yet checked."""

    def divide(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        """Divide a training part and a test part among clients.

        Parameters
        ----------
        samples
            Rows of both parts.
        num_clients
            From 1 to the number of rows of each part.
        seed
            Seed of the experiment; draws come from the stream ``"partition"``.

        Returns
        -------
        Partition
            Each client's positions in the two parts: ascending, and never empty but where
            the way to divide allows it.

        Raises
        ------
        DataError
            If the parts cannot be divided so.
        """
        num_rows = len(samples.test_labels)
        if not self.may_lack_a_part:
            _check_count(num_clients, num_rows, "test")
        result = self.divide_training(samples, num_clients, seed)
        return replace(result, test=self._checked("test", result.test, num_rows))

    def divide_training(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        """Divide as :meth:`divide` does, but with no check of the test part."""
        num_rows = len(samples.train_labels)
        if not self.may_lack_a_part:
            _check_count(num_clients, num_rows, "training")
        result = self._draw(samples, num_clients, numpy_stream(seed, "partition"))
        return replace(result, train=self._checked("training", result.train, num_rows))

    def _checked(self, part: str, clients: Sequence[IntArray], num_rows: int) -> Rows:
        """Sort each client's positions; refuse empty clients and broken partitions."""
        rows = Rows.of(clients)
        empty = np.flatnonzero(rows.sizes == 0)
        if len(empty) and not self.may_lack_a_part:
            keys = "".join(f", {key.name}" for key in self.KEYS)
            raise DataError(
                f"partitioner {self.NAME}: client {empty[0]} of num-clients = "
                f"{len(clients)} gets none of the {num_rows} {part} rows; change "
                f"num-clients{keys}"
            )
        uses = np.bincount(rows.positions, minlength=num_rows)
        shared = uses.max() > 1 and not self.SHARES_ROWS
        if shared or (self.EXHAUSTIVE and uses.min() < 1):
            raise DataError(f"partitioner {self.NAME} does not use each {part} row once")
        return rows.ascending()


def _check_count(num_clients: int, num_rows: int, part: str) -> None:
    if not 1 <= num_clients <= num_rows:
        raise DataError(
            f"key num-clients = {num_clients}: expected 1 to {num_rows}, the number of "
            f"{part} rows"
        )
