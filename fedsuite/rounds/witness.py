"""How far each client's update is from the others', for ``clients.jsonl``.

A row gets the length of the update as it came, that length over the round's median, and the
cosine of the update with the weighted mean of the *others'* updates. Nothing that a method
computes is read or changed.

Lengths of float32 models are right to seven digits: differences and squares are taken in
float32. Lengths of other models are right to float64's. For the cosine a client leaves not
its update but a sketch of :data:`WIDTH` numbers: the update's entries, with random signs,
added up in so many buckets (a count sketch: M. Charikar, K. Chen, M. Farach-Colton,
"Finding Frequent Items in Data Streams", ICALP 2002). So what a client leaves does not
grow with the model. Inner products of sketches are those of the updates but for an error
of about 1 / sqrt(WIDTH) of the lengths' product, 0.02; up to WIDTH parameters the sketch
is the update.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.rng import numpy_stream
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply

WIDTH = 2039
"""Buckets of a sketch; a prime, so that no layer's width divides it."""

_ROWS = 32
"""Rows of a sketch's width that are added up at a time: they stay in the cache."""

_SAFE = 1e-24, 1e30
"""Sums of squares between which float32 neither overflows nor underflows."""


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
    _sketcher: "Sketcher" = field(default_factory=lambda: Sketcher(), repr=False)

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
            alike = [k for k, seen in known.items() if seen.shapes == shapes]
            if len(alike) > 1:
                sketches = np.stack([known[k].sketch for k in alike])
                shares = np.array([weights[k] for k in alike])
                others = sums_of_others(shares[:, None] * sketches)
                for k, found in zip(alike, cosines(sketches, others).tolist(), strict=True):
                    report.annotate(k, cosine=found)

    def _looked_at(self, trained: Arrays, start: Mapping[str, NDArray[Any]]) -> Seen:
        names = [n for n, array in trained.items() if not is_statistic(n, array)]
        shapes = tuple((name, trained[name].shape) for name in names)
        pairs = [(trained[name], start.get(name)) for name in names]
        single = all(
            array.dtype == np.float32 and (origin is None or origin.dtype == np.float32)
            for array, origin in pairs
        )
        squares, sketch = self._sketcher.of(pairs, np.dtype("f4" if single else "f8"))
        if single and not _SAFE[0] < squares < _SAFE[1]:
            squares, sketch = self._sketcher.of(pairs, np.dtype("f8"))
        return Seen(float(np.sqrt(squares)), sketch, shapes)


class Sketcher:
    """Squares and sketches of changes, block by block, in memory that is used again."""

    def __init__(self) -> None:
        self._signs = np.ones((0, WIDTH), np.float32)
        self._blocks: dict[np.dtype[Any], NDArray[Any]] = {}

    def of(
        self,
        pairs: Sequence[tuple[NDArray[Any], NDArray[Any] | None]],
        dtype: np.dtype[Any],
    ) -> tuple[float, Vector]:
        """Return the sum of squares of the differences, and their sketch, ``[WIDTH]``.

        Parameters
        ----------
        pairs
            Arrays, each with its origin of the same shape; None is an origin of 0.
        dtype
            What differences are taken in.
        """
        size = sum(array.size for array, _ in pairs)
        signs = self._signs_of(size) if size > WIDTH else None
        squares, sketch, first = 0.0, np.zeros(WIDTH), 0
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in self._differences(pairs, dtype):
                # Without BLAS, whose bits depend on its threads.
                squares += float(np.einsum("ij,ij->j", rows, rows).sum(dtype=np.float64))
                if signs is None:
                    sketch += rows[0]
                else:
                    signed = signs[first : first + len(rows)]
                    sketch += np.einsum("ij,ij->j", rows, signed)
                first += len(rows)
        return squares, sketch

    def _differences(
        self,
        pairs: Sequence[tuple[NDArray[Any], NDArray[Any] | None]],
        dtype: np.dtype[Any],
    ) -> Iterator[NDArray[Any]]:
        """Yield the differences one after the other in rows, with zeros behind the last."""
        if dtype not in self._blocks:
            self._blocks[dtype] = np.empty((_ROWS, WIDTH), dtype)
        block = self._blocks[dtype].reshape(-1)
        end = 0
        for array, origin in pairs:
            flat, start = array.reshape(-1), None if origin is None else origin.reshape(-1)
            done = 0
            while done < flat.size:
                part = slice(done, min(done + block.size - end, flat.size))
                done, place = part.stop, block[end : end + part.stop - part.start]
                if start is None:
                    np.copyto(place, flat[part])
                else:
                    np.subtract(flat[part], start[part], out=place, dtype=dtype)
                end += len(place)
                if end == block.size:
                    yield block.reshape(-1, WIDTH)
                    end = 0
        count = -(-end // WIDTH)
        block[end : count * WIDTH] = 0
        if count:
            yield block[: count * WIDTH].reshape(-1, WIDTH)

    def _signs_of(self, size: int) -> NDArray[np.float32]:
        """Return rows of 1 or -1 for so many numbers, or for more."""
        count = -(-size // WIDTH)
        if count > len(self._signs):
            draws = numpy_stream(0, "update-sketch").integers(0, 2, count * WIDTH, np.int8)
            self._signs = (2 * draws - 1).astype(np.float32).reshape(count, WIDTH)
        return self._signs


def sums_of_others(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each row the sum of all others, ``[rows, width]``.

    Sums of those before and those after it: subtracting it from the sum of all would lose
    the others beside one that is enormous.
    """
    sums = np.zeros_like(rows)
    np.cumsum(rows[:-1], axis=0, out=sums[1:])
    sums[:-1] += np.cumsum(rows[:0:-1], axis=0)[::-1]
    return sums


def cosines(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of the angle between each two rows; 0 where one has no length."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        squares = (np.einsum("ij,ij->i", rows, rows) for rows in (left, right))
        lengths = np.prod([np.sqrt(of_rows) for of_rows in squares], axis=0)
        found = np.einsum("ij,ij->i", left, right) / lengths
    return np.where(np.isfinite(found), found, 0.0)
