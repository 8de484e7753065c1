"""Arrays inside Flower's records, read and written in NumPy's format without a copy."""

import io
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsuite.core.errors import FedsuiteError, one_line

_MOST_AXES = 32
_MOST_ENTRIES = 2**48
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biufcmMOSUV][0-9]{0,3})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:-?[0-9]{1,15}(?:, ?-?[0-9]{1,15}){0,63},?)?)\),? ?\} *\n?"
)


class RecordError(FedsuiteError):
    """A malformed record."""


class LazyArray(Array):
    """A Flower Array that holds an ndarray and serialises it only on demand.

    Within a process the ndarray itself is handed over. Over a wire the ndarray arrives as
    Flower's own Array. The ndarray must not be written to afterwards. An ndarray in another
    order than C order is copied.
    """

    def __init__(self, ndarray: NDArray[Any]) -> None:
        # Not np.ascontiguousarray, which turns a scalar array into one of shape (1,).
        view = np.asarray(ndarray, order="C").view()
        view.flags.writeable = False
        self.__dict__["_ndarray"] = view
        self.__dict__["dtype"] = dtype_name(view.dtype)
        self.__dict__["shape"] = view.shape
        self.__dict__["stype"] = "numpy.ndarray"

    @property
    def held(self) -> NDArray[Any]:
        """The array itself, read-only, in C order, without a copy."""
        view: NDArray[Any] = self.__dict__["_ndarray"]
        return view

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """Serialised form, made on first use."""
        if "_bytes" not in self.__dict__:
            pieces = npy_header(self.held.dtype, self.held.shape), byte_view(self.held)
            # One copy, where np.save makes three.
            self.__dict__["_bytes"] = b"".join(pieces)
        data: bytes = self.__dict__["_bytes"]
        return data

    def numpy(self) -> NDArray[Any]:
        """Return a fresh, writable copy, as Flower's own Array does."""
        return self.held.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross a process boundary (such as Ray's) as Flower's own Array."""
        return Array, (self.dtype, tuple(self.shape), self.stype, self.data)


# Flower writes the class name into serialised objects and looks the name up on arrival. The
# other side must find Flower's own Array.
LazyArray.__qualname__ = Array.__qualname__


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name, cached, because NumPy takes 4 microseconds per look-up."""
    return str(dtype)


def byte_view(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array in C order, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an array in C order in NumPy's format."""
    if dtype.hasobject:
        raise RecordError(f"dtype {dtype} is not allowed")
    buffer = io.BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Pack named arrays without copying them."""
    return filled(ArrayRecord(), {name: LazyArray(a) for name, a in arrays.items()})


def array_header(array: Array) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of an Array without decoding its content.

    Raises
    ------
    RecordError
        If the Array is not a plain NumPy array in one piece.
    """
    if isinstance(array, LazyArray):
        return array.held.shape, array.held.dtype
    shape, dtype, _, _ = _parse_npy(array)
    return shape, dtype


def view_array(array: Array) -> NDArray[Any]:
    """Return the content of an Array, read-only and in C order.

    An array in C order is not copied. An array in Fortran order, as from scikit-learn, is
    copied once. The header's size is checked against the received bytes before any
    allocation. Nothing is ever unpickled.

    Raises
    ------
    RecordError
        If the array cannot be decoded.
    """
    if isinstance(array, LazyArray):
        return array.held
    shape, dtype, offset, order = _parse_npy(array)
    flat = np.frombuffer(array.data, dtype=dtype, offset=offset)
    view = np.asarray(flat.reshape(shape, order=order), order="C")
    view.flags.writeable = False
    return view


def _parse_npy(
    array: Array,
) -> tuple[tuple[int, ...], np.dtype[Any], int, Literal["C", "F"]]:
    """Return shape, dtype, offset and memory order of the entries."""
    if array.stype != "numpy.ndarray":
        raise RecordError(f"unknown array serialisation {array.stype!r:.40}")
    data = array.data
    version = data[6:8]
    if data[:6] != b"\x93NUMPY":
        raise RecordError("not a NumPy array")
    if version not in (b"\x01\x00", b"\x02\x00"):
        raise RecordError(f"not a NumPy array: unknown format {tuple(version)}")
    start = 10 if version == b"\x01\x00" else 12
    offset = start + int.from_bytes(data[8:start], "little")
    # NumPy would read the header as a Python literal, which is less strict.
    match = _HEADER.fullmatch(data[start:offset]) if offset <= start + 1000 else None
    if match is None:
        raise RecordError("not a NumPy array: its header is not what NumPy writes")
    descr, order, axes = (part.decode() for part in match.groups())
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError):
        raise RecordError(f"not a NumPy array: unknown dtype {descr!r}") from None
    if dtype.hasobject or dtype.kind not in "biuf":
        two = ": send real and imaginary parts as two arrays" if dtype.kind == "c" else ""
        raise RecordError(f"dtype {dtype} is not allowed{two}")
    shape = tuple(int(length) for length in axes.split(",") if length.strip())
    entries = math.prod(max(abs(length), 1) for length in shape)
    if len(shape) > _MOST_AXES or entries > _MOST_ENTRIES:
        raise RecordError("array claims a shape that no array has")
    size = dtype.itemsize * math.prod(shape)
    if size != len(data) - offset or any(length < 0 for length in shape):
        raise RecordError(f"array of shape {shape} does not fit its {len(data)} bytes")
    return shape, dtype, offset, "F" if order == "True" else "C"


def to_arrays(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Unpack a record into named arrays, each as :func:`view_array` returns it."""
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = view_array(array)
        except RecordError as error:
            raise RecordError(f"array {one_line(name)}: {error}") from error
    return arrays


def own_record(record: ArrayRecord) -> ArrayRecord:
    """Return a record of arrays in C order, the same record if possible."""
    if all(isinstance(array, LazyArray) for array in record.values()):
        return record
    return to_record(to_arrays(record))


def num_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of named arrays in bytes."""
    return sum(array.nbytes for array in arrays.values())


Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)


def filled(record: Record, entries: Mapping[str, Any]) -> Record:
    """Put entries of the right types into a record at once, and return it.

    Flower checks the type of each entry, which takes a microsecond (flwr 1.39 to 1.42):
    most of what a small reply costs. To delete when it fills a record in one step.
    """
    content = record.__dict__.get("_data")
    if type(content) is dict:
        content.update(entries)
        return record
    for name, entry in entries.items():
        record[name] = entry
    return record


def metric_record(metrics: Mapping[str, Any]) -> MetricRecord:
    """Return a record of metrics; Flower raises TypeError for what is no metric."""
    if all(type(value) in (int, float) for value in metrics.values()):
        return filled(MetricRecord(), metrics)
    return MetricRecord(dict(metrics))
