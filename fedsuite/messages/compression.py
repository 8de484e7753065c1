"""How changes of a model are made small before they travel: both sides read this file.

What is coded is the change of the model's float arrays; statistics and counters of it
travel as they are. With D the change, a vector of n entries in all:

- ``top-k``: the k = share x n entries of largest magnitude, with their places.
- ``random-k``: k entries drawn alike on both sides, times n / k. Right in the mean.
- ``qsgd``: of each bucket of 512 entries the largest magnitude m, and each entry as one of
  the multiples of m / s from -m to m, s = 2^(bits - 1) - 1, drawn of the two next ones so
  that it is right in the mean. D. Alistarh et al., "QSGD", NeurIPS 2017, arXiv:1610.02132;
  with m in place of the bucket's length, as its section 4 does in practice.
- ``signs``: the signs, and of each array the mean magnitude. S. P. Karimireddy et al.,
  "Error Feedback Fixes SignSGD", ICML 2019, arXiv:1901.09847.
- ``low-rank``: of each array, as a matrix M of its first axis, P = orthonormal basis of
  M Q0 and Q = M' P, with Q0 drawn alike on both sides and one more step of subspace
  iteration. T. Vogels et al., "PowerSGD", NeurIPS 2019, arXiv:1905.13727, which has a
  shared P where here each client has its own. Arrays that would not shrink travel as they
  are.
- ``float16``, ``bfloat16``: the change in 16 bits.

``top-k``, ``signs`` and ``low-rank`` lose a part of the change that its sender keeps and
adds to its next one: error feedback. A share of 1 and 32 bits lose nothing: then the model
itself travels, as if there were no key.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.rng import numpy_stream
from fedsuite.core.vectors import largest
from fedsuite.messages.array_records import RecordError
from fedsuite.messages.records import Arrays
from fedsuite.messages.statistics import is_statistic

Compression = Literal[
    "none", "top-k", "random-k", "qsgd", "signs", "low-rank", "float16", "bfloat16"
]

UP, DOWN = "compress-up", "compress-down"
"""The keys, which are also the purposes of their random streams."""

STEP = "step"
"""Record of the coded change since the version that a client has."""

VERSION, FROM = "model-version", "from-version"
"""Version of the model in a message; in the record :data:`STEP` that it starts from."""

BUCKET = 512
_FED_BACK = frozenset({"top-k", "signs", "low-rank"})
_LARGEST_HALF = float(np.finfo(np.float16).max)

Vector32 = NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Codec:
    """One way to code a change.

    Parameters
    ----------
    kind
        Which.
    share
        Of ``top-k`` and ``random-k``: k over n.
    bits
        Of ``qsgd``.
    rank
        Of ``low-rank``.
    seed, purpose
        Name the streams of draws, with the round, or a version of the model, and the
        client.
    """

    kind: Compression
    share: float
    bits: int
    rank: int
    seed: int
    purpose: str

    @property
    def is_on(self) -> bool:
        """Whether anything is coded: not where nothing would be lost."""
        whole = self.kind in ("top-k", "random-k") and self.share == 1.0
        return self.kind != "none" and not whole and (self.kind, self.bits) != ("qsgd", 32)

    @property
    def feeds_back(self) -> bool:
        """Whether the sender keeps what was lost, for its next change."""
        return self.kind in _FED_BACK

    def encode(self, change: Arrays, server_round: int, client_id: int) -> Arrays:
        """Return a change of float32 arrays as what travels; it must be finite."""
        stream = numpy_stream(self.seed, self.purpose, server_round, client_id)
        # Files of states have another order than models: this one all have.
        change = dict(sorted(change.items()))
        if self.kind == "low-rank":
            return self._factors(change, stream)
        return self._encode_flat(_flat(change), change, stream)

    def decode(
        self, coded: Arrays, shapes: Shapes, server_round: int, client_id: int
    ) -> Arrays:
        """Return the change of arrays of these shapes.

        Raises
        ------
        RecordError
            If what came is not what :meth:`encode` can have made.
        """
        stream = numpy_stream(self.seed, self.purpose, server_round, client_id)
        shapes = dict(sorted(shapes.items()))
        if self.kind == "low-rank":
            return self._products(coded, shapes)
        size = sum(math.prod(shape) for shape in shapes.values())
        flat = self._decode_flat(coded, size, shapes, stream)
        return _parts(flat, shapes)

    # ------------------------------------------------------------ of all entries as a row

    def _encode_flat(
        self, flat: Vector32, change: Arrays, stream: np.random.Generator
    ) -> Arrays:
        if self.kind == "top-k":
            kept = largest(flat.astype(np.float64), self._count(flat.size))
            places = np.flatnonzero(kept)
            return {"places": places.astype(np.uint32), "values": flat[places]}
        if self.kind == "random-k":
            places = self._drawn(flat.size, stream)
            return {"values": flat[places]}
        if self.kind == "qsgd":
            return self._levels(flat, stream)
        if self.kind == "signs":
            scales = [np.abs(a).mean() if a.size else 0.0 for a in change.values()]
            return {
                "signs": np.packbits(flat >= 0),
                "scales": np.array(scales, np.float32),
            }
        if self.kind == "float16":
            bounded = np.clip(flat, -_LARGEST_HALF, _LARGEST_HALF)
            return {"values": bounded.astype(np.float16)}
        return {"values": to_bfloat16(flat)}

    def _decode_flat(
        self, coded: Arrays, size: int, shapes: Shapes, stream: np.random.Generator
    ) -> Vector32:
        flat: Vector32 = np.zeros(size, np.float32)
        if self.kind in ("top-k", "random-k"):
            count = self._count(size)
            spec = {"values": ((count,), "float32")}
            if self.kind == "random-k":
                _check(coded, spec)
                flat[self._drawn(size, stream)] = coded["values"] * np.float32(size / count)
                return flat
            _check(coded, {"places": ((count,), "uint32"), **spec})
            places = coded["places"].astype(np.int64)
            if (np.diff(places) <= 0).any() or (count and places[-1] >= size):
                raise RecordError(f"places: expected rising numbers below {size}")
            flat[places] = coded["values"]
            return flat
        if self.kind == "qsgd":
            return self._unlevelled(coded, size)
        if self.kind == "signs":
            packed = ((-(-size // 8),), "uint8")
            _check(coded, {"signs": packed, "scales": ((len(shapes),), "float32")})
            if (coded["scales"] < 0).any():
                raise RecordError("scales: expected numbers of at least 0")
            sizes = [math.prod(shape) for shape in shapes.values()]
            positive = np.unpackbits(coded["signs"], count=size).astype(bool)
            scales: Vector32 = np.repeat(coded["scales"], sizes)
            return np.where(positive, scales, -scales)
        dtype = "float16" if self.kind == "float16" else "uint16"
        _check(coded, {"values": ((size,), dtype)})
        if self.kind == "float16":
            return coded["values"].astype(np.float32)
        return from_bfloat16(coded["values"])

    def _count(self, size: int) -> int:
        return min(size, max(1, math.ceil(self.share * size)))

    def _drawn(self, size: int, stream: np.random.Generator) -> NDArray[np.int64]:
        return np.sort(stream.permutation(size)[: self._count(size)])

    def _levels(self, flat: Vector32, stream: np.random.Generator) -> Arrays:
        steps = 2 ** (self.bits - 1) - 1
        scales = _bucket_sizes(flat)
        of_entry = np.repeat(scales, BUCKET)[: flat.size].astype(np.float64)
        of_entry[of_entry == 0] = 1.0
        position = flat / of_entry * steps
        levels = np.floor(position + stream.random(flat.size)).astype(np.int64)
        codes = (np.clip(levels, -steps, steps) + steps).astype(np.uint16)
        return {"scales": scales, "levels": _bits_of(codes, self.bits)}

    def _unlevelled(self, coded: Arrays, size: int) -> Vector32:
        steps = 2 ** (self.bits - 1) - 1
        num_bytes = -(-size * self.bits // 8)
        _check(
            coded,
            {
                "scales": ((-(-size // BUCKET),), "float32"),
                "levels": ((num_bytes,), "uint8"),
            },
        )
        if (coded["scales"] < 0).any():
            raise RecordError("scales: expected numbers of at least 0")
        codes = _codes_of(coded["levels"], size, self.bits)
        if codes.max(initial=0) > 2 * steps:
            raise RecordError(f"levels: expected numbers up to {2 * steps}")
        scales = np.repeat(coded["scales"], BUCKET)[:size].astype(np.float64)
        decoded: Vector32 = ((codes.astype(np.int64) - steps) * scales / steps).astype(
            np.float32
        )
        return decoded

    # ------------------------------------------------------------------ of single matrices

    def _factors(self, change: Arrays, stream: np.random.Generator) -> Arrays:
        coded: Arrays = {}
        for name, array in change.items():
            rank = _rank_of(array.shape, self.rank)
            if not rank:
                coded[f"whole/{name}"] = array
                continue
            matrix = array.reshape(len(array), -1)
            right = stream.standard_normal((matrix.shape[1], rank)).astype(np.float32)
            # The second multiplication by the matrix turns the basis to its largest part.
            left = _orthonormal(matrix @ (matrix.T @ _orthonormal(matrix @ right)))
            coded[f"left/{name}"], coded[f"right/{name}"] = left, matrix.T @ left
        return coded

    def _products(self, coded: Arrays, shapes: Shapes) -> Arrays:
        spec: dict[str, tuple[tuple[int, ...], str]] = {}
        for name, shape in shapes.items():
            rank = _rank_of(shape, self.rank)
            if not rank:
                spec[f"whole/{name}"] = (shape, "float32")
                continue
            rows, columns = shape[0], math.prod(shape[1:])
            spec[f"left/{name}"] = ((rows, rank), "float32")
            spec[f"right/{name}"] = ((columns, rank), "float32")
        _check(coded, spec)
        return {
            name: coded[f"whole/{name}"]
            if f"whole/{name}" in coded
            else (coded[f"left/{name}"] @ coded[f"right/{name}"].T).reshape(shape)
            for name, shape in shapes.items()
        }


def coded_names(arrays: Arrays, reference: Collection[str]) -> list[str]:
    """Return the names whose change is coded: trained ones that the other side has.

    Declared buffers (:func:`~fedsuite.messages.statistics.buffers_declared`) are none.
    """
    return [n for n, a in arrays.items() if n in reference and not is_statistic(n, a)]


def changed(new: Arrays, old: Arrays, names: Collection[str], before: Arrays) -> Arrays:
    """Return new minus old of these names in float32, and what was lost before."""
    return {
        name: (
            np.subtract(new[name], old[name], dtype=np.float64) + before.get(name, 0.0)
        ).astype(np.float32)
        for name in names
    }


def packed(coded: Arrays, rest: Arrays) -> Arrays:
    """Return one record of a coded change and of the arrays that travel as they are."""
    return {
        **{f"coded/{name}": array for name, array in coded.items()},
        **{f"rest/{name}": array for name, array in rest.items()},
    }


def unpacked(record: Arrays) -> tuple[Arrays, Arrays]:
    """Return what :func:`packed` was given; RecordError of what it cannot have made."""
    parts: dict[str, Arrays] = {"coded": {}, "rest": {}}
    for name, array in record.items():
        part, _, own = name.partition("/")
        if part not in parts:
            raise RecordError(f"array {name[:60]}: expected a coded change")
        parts[part][own] = array
    return parts["coded"], parts["rest"]


@dataclass(frozen=True)
class HalfModel:
    """What makes a model of a record whose arrays are partly the bits of bfloat16.

    Parameters
    ----------
    halves
        Names of these arrays.
    """

    halves: frozenset[str]

    def coded(self, model: Arrays) -> Arrays:
        """Return a model as it travels."""
        return {n: to_bfloat16(a) if n in self.halves else a for n, a in model.items()}

    def rounded(self, model: Arrays) -> Arrays:
        """Return a model with the numbers that :meth:`coded` and back leave of it."""
        return self.decoded(self.coded(model))

    def decoded(self, record: Arrays, client_id: int = 0) -> Arrays:
        """Return the model; RecordError where an array is no bfloat16 that should be."""
        model: Arrays = {}
        for name, array in record.items():
            is_half = name in self.halves
            if is_half and array.dtype != np.uint16:
                raise RecordError(f"array {name}: {array.dtype}, expected bfloat16")
            model[name] = from_bfloat16(array) if is_half else array
        return model


@dataclass(frozen=True)
class CodedModel:
    """What makes a model of a reply that holds a coded change of one.

    Parameters
    ----------
    codec
        How it is coded.
    reference
        The model that was sent.
    names
        All arrays that come back, in order; those in ``coded`` as a change.
    coded
        Names of the coded ones.
    server_round
        The round.
    """

    codec: Codec
    reference: Arrays
    names: tuple[str, ...]
    coded: tuple[str, ...]
    server_round: int

    def decoded(self, record: Arrays, client_id: int) -> Arrays:
        """Return the model; RecordError if the record is none that a client may send."""
        coded, rest = unpacked(record)
        shapes = {name: self.reference[name].shape for name in self.coded}
        if rest.keys() != set(self.names) - set(self.coded):
            raise RecordError("arrays that travel as they are: missing, or too many")
        change = self.codec.decode(coded, shapes, self.server_round, client_id)
        own = {name: self.reference[name] for name in self.coded}
        model = {**moved(own, change), **rest}
        return {name: model[name] for name in self.names}


def moved(old: Arrays, change: Arrays) -> Arrays:
    """Return old arrays with a change added, in their dtypes; those without stay."""
    return {
        name: (array + change[name]).astype(array.dtype) if name in change else array
        for name, array in old.items()
    }


def not_across(change: Arrays, decoded: Arrays) -> Arrays:
    """Return what of a change did not get across."""
    return {name: array - decoded[name] for name, array in change.items()}


def to_bfloat16(values: Vector32) -> NDArray[np.uint16]:
    """Return float32 numbers, rounded to the nearest bfloat16, as its 16 bits."""
    bits = np.asarray(values, np.float32, order="C").view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    rounded[np.isnan(values)] = 0x7FC00000
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> Vector32:
    """Return the float32 numbers that the bits of bfloat16 stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _flat(arrays: Arrays) -> Vector32:
    rows = [np.asarray(array, np.float32).reshape(-1) for array in arrays.values()]
    return np.concatenate(rows) if rows else np.zeros(0, np.float32)


def _parts(flat: Vector32, shapes: Shapes) -> Arrays:
    parts, start = {}, 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        parts[name] = flat[start:end].reshape(shape)
        start = end
    return parts


def _bucket_sizes(flat: Vector32) -> Vector32:
    padded = np.zeros(-(-flat.size // BUCKET) * BUCKET, np.float32)
    padded[: flat.size] = np.abs(flat)
    largest: Vector32 = padded.reshape(-1, BUCKET).max(axis=1, initial=0.0)
    return largest


def _bits_of(codes: NDArray[np.uint16], bits: int) -> NDArray[np.uint8]:
    places = np.arange(bits - 1, -1, -1, dtype=np.uint16)
    return np.packbits((codes[:, None] >> places) & np.uint16(1))


def _codes_of(bytes_: NDArray[np.uint8], size: int, bits: int) -> NDArray[np.int64]:
    rows = np.unpackbits(bytes_, count=size * bits).reshape(size, bits)
    weights = 1 << np.arange(bits - 1, -1, -1, dtype=np.int64)
    return rows.astype(np.int64) @ weights


def _rank_of(shape: tuple[int, ...], rank: int) -> int:
    """Return the rank with which an array's matrix shrinks; 0 if it would not."""
    if len(shape) < 2:
        return 0
    rows, columns = shape[0], math.prod(shape[1:])
    return rank if rank * (rows + columns) < rows * columns else 0


def _orthonormal(matrix: NDArray[Any]) -> Vector32:
    basis: Vector32 = np.linalg.qr(matrix.astype(np.float64))[0].astype(np.float32)
    return basis


def _check(coded: Arrays, spec: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Refuse other names, shapes or dtypes, and numbers that are none."""
    if coded.keys() != spec.keys():
        raise RecordError(
            f"coded arrays {', '.join(sorted(coded))[:80]}: expected "
            f"{', '.join(sorted(spec))[:80]}"
        )
    for name, (shape, dtype) in spec.items():
        array = coded[name]
        if (array.shape, str(array.dtype)) != (shape, dtype):
            raise RecordError(
                f"coded {name[:60]}: {array.dtype} of shape {array.shape}, expected "
                f"{dtype} of shape {shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RecordError(f"coded {name[:60]}: holds NaN or infinity")
