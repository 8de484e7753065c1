"""How far each client's update is from the others', for ``clients.jsonl``.

A row gets the length of the update as it came, that length over the round's median, and the
cosine of the update with the weighted mean of the *others'* updates. Nothing that a method
computes is read or changed.

Lengths are exact. For the cosine a client leaves not its update but a sketch of
:data:`WIDTH` numbers: the update's entries, with random signs, added up in so many buckets
(a count sketch: M. Charikar, K. Chen, M. Farach-Colton, "Finding Frequent Items in Data
Streams", ICALP 2002). So a round's memory does not grow with the model. Inner products of
sketches are those of the updates but for an error of about 1 / sqrt(WIDTH) of the lengths'
product, 0.02; up to WIDTH parameters the sketch is the update.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.rng import numpy_stream
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.changes import Changes
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply

WIDTH = 2039
"""Buckets of a sketch; a prime, so that no layer's width divides it."""

_ROWS = 15
"""Rows of a sketch's width that are added up at a time."""


@dataclass(frozen=True)
class Seen:
    """What is kept of one client's update.

    Parameters
    ----------
    norm
        Its length.
    sketch
        Its sketch.
    shapes
        Names and shapes of the arrays: only equal ones compare.
    """

    norm: float
    sketch: Vector
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass
class Witness:
    """Sees the updates of a round pass, and tells of them in the round's report."""

    _seen: dict[int, Seen] = field(default_factory=dict)
    _signs: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    _changes: Changes = field(default_factory=Changes, repr=False)
    _change: Vector = field(default_factory=lambda: np.zeros(0), repr=False)

    def begin(self) -> None:
        """Forget the last round."""
        self._seen = {}

    def take(self, exchange: Exchange, reply: ClientReply) -> None:
        """See a reply as it came; one without a trained model is passed over."""
        own = exchange.own.get(reply.client_id, {})
        start = own.get(ARRAYS) or exchange.shared.get(ARRAYS)
        trained = reply.arrays.get(ARRAYS)
        if start and trained:
            seen = self._seen[reply.client_id] = self._looked_at(trained, start)
            reply.lengths[ARRAYS, id(start)] = seen.norm

    def tell(self, report: PhaseReport) -> None:
        """Add the columns to the clients' rows."""
        weights = report.weights()
        known = {k: seen for k, seen in self._seen.items() if k in weights}
        if not known:
            return
        median = float(np.median([seen.norm for seen in known.values()]))
        for client_id, seen in known.items():
            columns = {"update_norm": seen.norm}
            if median > 0:
                columns["norm_ratio"] = seen.norm / median
            report.annotate(client_id, **columns)
        for shapes in dict.fromkeys(seen.shapes for seen in known.values()):
            alike = {k: seen.sketch for k, seen in known.items() if seen.shapes == shapes}
            if len(alike) > 1:
                weighted = np.stack([weights[k] * sketch for k, sketch in alike.items()])
                for k, others in zip(alike, sums_of_others(weighted), strict=True):
                    report.annotate(k, cosine=cosine(alike[k], others))

    def _looked_at(self, trained: Arrays, start: Mapping[str, NDArray[Any]]) -> Seen:
        names = [n for n, array in trained.items() if not is_statistic(n, array)]
        shapes = tuple((name, trained[name].shape) for name in names)
        size = sum(trained[name].size for name in names)
        if size > max(WIDTH, self._signs.size):
            signs = numpy_stream(0, "update-sketch").integers(0, 2, size, np.int8)
            self._signs = 2 * signs - 1
        sketch, squares, offset = np.zeros(WIDTH), 0.0, 0
        for name in names:
            length = trained[name].size
            if length > self._change.size:
                self._change = np.empty(length)
            change = self._change[:length]
            squares += self._changes.squares(trained[name], start.get(name, 0.0), change)
            of_array = self._signs[offset : offset + length] if size > WIDTH else None
            add_in_buckets(sketch, change, offset, of_array)
            offset += length
        return Seen(float(np.sqrt(squares)), sketch, shapes)


def sums_of_others(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each row the sum of all others, ``[rows, width]``.

    Sums of those before and those after it: subtracting it from the sum of all would lose
    the others beside one that is enormous.
    """
    sums = np.zeros_like(rows)
    np.cumsum(rows[:-1], axis=0, out=sums[1:])
    after = np.zeros(rows.shape[1:])
    for index in range(len(rows) - 1, -1, -1):
        sums[index] += after
        after += rows[index]
    return sums


def add_in_buckets(
    sketch: Vector, values: Vector, offset: int, signs: NDArray[np.int8] | None = None
) -> None:
    """Add values to a sketch in place: value i to bucket (offset + i) modulo its width.

    Parameters
    ----------
    sketch, values, offset
        Sums so far, what to add, and the number of the first value.
    signs
        1 or -1 for each value; None is 1 for all.
    """
    width = sketch.size
    if signs is None:
        signs = np.ones(values.size, np.int8)
    start, first = offset % width, min((-offset) % width, values.size)
    last = first + (values.size - first) // width * width
    sketch[start : start + first] += values[:first] * signs[:first]
    middle = slice(first, last)
    rows = values[middle].reshape(-1, width), signs[middle].reshape(-1, width)
    sketch += _signed_sum(*rows)
    sketch[: values.size - last] += values[last:] * signs[last:]


def _signed_sum(rows: NDArray[np.float64], signs: NDArray[np.int8]) -> Vector:
    """Return the sum of rows, a few at a time: what lies in between stays in the cache."""
    # The sum so far is the first row of each block, so that it is one sum to the bit.
    block = np.zeros((1 + _ROWS, rows.shape[1]))
    for first in range(0, len(rows), _ROWS):
        part = rows[first : first + _ROWS]
        filled = block[: 1 + len(part)]
        np.multiply(part, signs[first : first + _ROWS], out=filled[1:])
        block[0] = filled.sum(axis=0)
    total: Vector = block[0]
    return total


def cosine(left: Vector, right: Vector) -> float:
    """Return the cosine of the angle between vectors; 0 where one has no length."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.square(left).sum()) * np.sqrt(np.square(right).sum())
        found = float((left * right).sum() / lengths) if lengths > 0 else 0.0
    return found if np.isfinite(found) else 0.0
