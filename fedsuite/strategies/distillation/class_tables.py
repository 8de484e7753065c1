"""Exchanges of one row per class: clients send rows, and the server returns means.

For distillation by labels, without public data. A round is one exchange: the message holds
rows of classes, clients train on their own data with them, and answer with rows of theirs.
The message holds only rows that exist. A reply has a fixed, announced shape: a class that a
client does not have is a row of zeros, which is never used; other values are refused.

Rows are those of the last round that counted. No array of the shape of a model leaves a
client.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.method import (
    CLASS_TABLE,
    CLASSES,
    COUNTS,
    EVALUATE,
    NO_COMMON_STEP,
    NO_MODEL_BACK,
    NO_WHOLE_MODEL,
    OWN_RULE,
    ROWS,
    TRAIN,
    Arrays,
    BadReply,
    ClientReply,
    ConfigValue,
    Exchange,
    Expected,
    FederatedStrategy,
    Release,
    Value,
    key,
    part,
    state,
)
from fedsuite.rounds.kinds import Kind
from fedsuite.strategies.distillation.public_exchange import COMMON, LARGEST_OUTPUT

Floats = NDArray[np.float64]


class ClassTables(FederatedStrategy):
    """Base of the methods that exchange one row per class."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "a client sends tables of outputs or features, which nothing clips",
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = COMMON
    FIXED: ClassVar[Mapping[str, Value]] = {"upload-noise-multiplier": 0.0}
    FIXED_REASON: ClassVar[str] = (
        "its uploads tell which classes a client has, which noise cannot hide"
    )
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **OWN_RULE,
        **NO_COMMON_STEP,
        **NO_MODEL_BACK,
        **NO_WHOLE_MODEL,
    }
    PRIVATE_MODELS: ClassVar[bool] = True
    NO_GLOBAL_MODEL: ClassVar[str] = "clients keep their models"

    LARGEST: ClassVar[float] = LARGEST_OUTPUT
    """Largest magnitude of a number that a client may send."""

    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient exchanges no class tables"

    num_classes: int = part(help="rows of a table")
    reset_optimizer: bool = key(
        default=False, help="new client optimiser in each round; false keeps it", told=TRAIN
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 1:
            raise ValueError(f"num_classes = {self.num_classes}: expected at least 1")

    @property
    def settings(self) -> dict[str, ConfigValue]:
        """Settings in each message: keys, and the number of classes."""
        return {**self.told(TRAIN), "num-classes": self.num_classes}

    # ------------------------------------------------------------- for methods to override

    @abstractmethod
    def row_width(self) -> int:
        """Return the length of a row; may ask the clients."""

    @abstractmethod
    def take_tables(self, replies: Sequence[ClientReply]) -> None:
        """Take in the tables of a round that counts, in client order; at least one."""

    def shared_rows(self) -> Arrays:
        """Return rows that all clients get, packed; empty sends none."""
        return {}

    def own_rows(self, client_ids: Sequence[int]) -> dict[int, Arrays]:
        """Return rows that only one client gets, packed, by client; empty sends none."""
        return {}

    def check(self, reply: ClientReply) -> None:
        """Raise :class:`~fedsuite.rounds.validation.BadReply` at a senseless table."""
        rows, counts = table_of(reply)
        if rows[counts == 0].any():
            reason = "the table has rows of classes that it says it does not have"
            raise BadReply(Kind.WRONG_ARRAYS, reason)

    # ---------------------------------------------------------------------------- a round

    _held: list[ClientReply] = state(default_factory=list)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        width = self.row_width()
        spec = {
            ROWS: ((self.num_classes, width), "float32"),
            # The dtype keeps counts whole and not negative.
            COUNTS: ((self.num_classes,), "uint32"),
        }
        rows, own_rows = self.shared_rows(), self.own_rows(client_ids)
        shared = {CLASS_TABLE: rows} if rows else {}
        own = {k: {CLASS_TABLE: rows} for k, rows in own_rows.items() if rows}
        expected = Expected({CLASS_TABLE: spec}, largest=self.LARGEST, check=self.check)
        return Exchange(TRAIN, client_ids, shared, own, self.settings, expected)

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._held = []

    @override
    def take(self, reply: ClientReply) -> None:
        self._held.append(reply)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        held, self._held = self._held, []
        if held:
            self.take_tables(held)
        return None

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids)


def table_of(reply: ClientReply) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return rows ``[classes, width]`` and counts ``[classes]`` of a reply."""
    table = reply.arrays[CLASS_TABLE]
    return table[ROWS], table[COUNTS]


def packed(rows: NDArray[Any], present: NDArray[Any]) -> Arrays:
    """Return the rows of the classes that are present, and these classes; {} of none."""
    classes = np.flatnonzero(present)
    if not len(classes):
        return {}
    return {ROWS: rows[classes].astype(np.float32), CLASSES: classes.astype(np.int64)}


def mean_rows(
    tables: Sequence[NDArray[Any]], weights: Sequence[NDArray[Any]]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the mean of each row over the clients that have it, and whether any does.

    Tables are ``[classes, width]``, weights ``[classes]`` >= 0; 0 marks a missing row.
    """
    sums, total = np.zeros(tables[0].shape), np.zeros(len(tables[0]))
    for table, weight in zip(tables, weights, strict=True):
        sums += np.multiply(table, weight[:, np.newaxis], dtype=np.float64)
        total += weight
    return sums / np.where(total > 0, total, 1.0)[:, np.newaxis], total > 0
