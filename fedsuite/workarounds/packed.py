"""Records packed into one array, for messages between machines.

Flower makes an object of each array, with a hash and requests of its own, which a SuperNode
looks for every half second. Between machines the 122 arrays of a ResNet-18 take three times
as long as one array of as many bytes. A packed record is an ArrayRecord ``NAME`` with one
array of bytes, and a ConfigRecord ``NAME.layout`` with the names, dtypes and shapes of the
packed arrays. Each packed array starts at the next multiple of 64 bytes.

Between machines requests are packed, and a packed request gets a packed reply. Other Flower
apps use ``PackedGrid(grid)`` (:mod:`fedsuite.workarounds.packed_grid`) on the server, and
:func:`packing_mod` among the ClientApp's mods.

Seen in flwr 1.39, 1.41 and 1.42. To delete, with :mod:`fedsuite.workarounds.packed_grid`,
when a Flower message with 122 arrays is about as fast as a message with one array of as
many bytes.
"""

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedsuite.messages.array_records import (
    LazyArray,
    RecordError,
    byte_view,
    npy_header,
    to_arrays,
)
from fedsuite.messages.records import (
    DAMAGE,
    ERROR,
    Arrays,
)

PACKED = "packed"
LAYOUT = ".layout"

_ALIGNMENT = 64
_MOST_ARRAYS = 100_000
_DTYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")
_OF_A_CLIENT = re.compile(r"client-[0-9]+\.")
_SHAPE = re.compile(r"(?:[0-9]{1,15}(?:,[0-9]{1,15}){0,31})?")

Packing = dict[int, tuple[ArrayRecord, ArrayRecord, ConfigRecord]]
"""Packed records by identity: the original, the packed record, and the layout."""


class PackedArray(Array):
    """Bytes of several arrays, concatenated on first use.

    Parameters
    ----------
    arrays
        Arrays to concatenate, in C order. They must not be written to afterwards.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.__dict__["_arrays"] = arrays
        self.__dict__["dtype"] = "uint8"
        self.__dict__["shape"] = (_end(arrays),)
        self.__dict__["stype"] = "numpy.ndarray"

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """Serialised form of an array of bytes, made on first use."""
        if "_bytes" not in self.__dict__:
            arrays: Arrays = self.__dict__["_arrays"]
            self.__dict__["_bytes"] = b"".join(_pieces(arrays))
        data: bytes = self.__dict__["_bytes"]
        return data

    def __reduce__(self) -> tuple[object, ...]:
        """Cross a process boundary (Ray) as Flower's own Array."""
        return Array, (self.dtype, tuple(self.shape), self.stype, self.data)


# As for LazyArray, Flower looks the class up by this name on arrival.
PackedArray.__qualname__ = Array.__qualname__


def pack(content: RecordDict, done: Packing | None = None) -> RecordDict:
    """Return a message's content with the arrays of each record in one.

    Parameters
    ----------
    content
        Is not changed. A record of one array or none stays as it is.
    done
        What was packed before: a record that several messages share is packed once.
    """
    done = {} if done is None else done
    packed = RecordDict()
    for name, record in content.items():
        if not isinstance(record, ArrayRecord) or len(record) < 2:
            packed[name] = record
            continue
        if id(record) not in done:
            done[id(record)] = record, *_pack_record(record)
        _, packed[name], packed[name + LAYOUT] = done[id(record)]
    return packed


def unpack(content: RecordDict) -> RecordDict:
    """Return a message's content with all records unpacked.

    Arrays are views of the received bytes. Other records stay as they are.

    Raises
    ------
    RecordError
        If a layout does not fit its bytes.
    """
    unpacked = RecordDict()
    for name, record in _without_layouts(content):
        layout = _layout_of(content, name)
        unpacked[name] = record if layout is None else _unpack_record(record, layout)
    return unpacked


def unpack_reply(content: RecordDict) -> RecordDict:
    """Return a reply's unpacked content.

    A failure of the client replaces a record whose layout does not fit its bytes.
    """
    unpacked = RecordDict()
    for name, record in _without_layouts(content):
        layout = _layout_of(content, name)
        try:
            unpacked[name] = record if layout is None else _unpack_record(record, layout)
        except RecordError as error:
            client = _OF_A_CLIENT.match(name)
            place = f"{client[0]}{ERROR}" if client else DAMAGE
            reason = f"what came is damaged: {error}"
            unpacked[place] = ConfigRecord({"reason": reason})
    return unpacked


def packing_mod(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Flower mod: unpack a packed request and pack its reply."""
    if not any(name.endswith(LAYOUT) for name in message.content):
        return call_next(message, context)
    message.content = unpack(message.content)
    reply = call_next(message, context)
    if reply.has_content():
        reply.content = pack(reply.content)
    return reply


def _pack_record(record: ArrayRecord) -> tuple[ArrayRecord, ConfigRecord]:
    arrays = to_arrays(record)
    layout = ConfigRecord(
        {
            "names": list(arrays),
            "dtypes": [array.dtype.str for array in arrays.values()],
            "shapes": [",".join(map(str, array.shape)) for array in arrays.values()],
        }
    )
    return ArrayRecord({PACKED: PackedArray(arrays)}), layout


def _end(arrays: Arrays) -> int:
    """Return the end of the last array."""
    offset = 0
    for array in arrays.values():
        offset = _aligned(offset) + array.nbytes
    return offset


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _pieces(arrays: Arrays) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a serialised packed array, in order."""
    yield npy_header(np.dtype(np.uint8), (_end(arrays),))
    offset = 0
    for array in arrays.values():
        yield bytes(_aligned(offset) - offset)
        yield byte_view(array)
        offset = _aligned(offset) + array.nbytes


def _without_layouts(
    content: RecordDict,
) -> Iterator[tuple[str, ArrayRecord | ConfigRecord]]:
    """Yield all records except layouts."""
    for name, record in content.items():
        owner = name.removesuffix(LAYOUT)
        if owner == name or _layout_of(content, owner) is None:
            yield name, record  # type: ignore[misc]


def _layout_of(content: Mapping[str, object], name: str) -> ConfigRecord | None:
    """Return the layout of a record, None for an unpacked record."""
    record, layout = content.get(name), content.get(name + LAYOUT)
    packed = isinstance(record, ArrayRecord) and list(record) == [PACKED]
    return layout if packed and isinstance(layout, ConfigRecord) else None


def _unpack_record(record: object, layout: ConfigRecord) -> ArrayRecord:
    assert isinstance(record, ArrayRecord)
    names, dtypes, shapes = (_words(layout, key) for key in ("names", "dtypes", "shapes"))
    if not len(names) == len(set(names)) == len(dtypes) == len(shapes) <= _MOST_ARRAYS:
        raise RecordError("its layout does not name each array once")
    flat = to_arrays(record)[PACKED]
    if flat.dtype != np.uint8 or flat.ndim != 1:
        raise RecordError(f"it is {flat.dtype} of shape {flat.shape}, not a row of bytes")
    unpacked, offset = ArrayRecord(), 0
    for name, word, axes in zip(names, dtypes, shapes, strict=True):
        dtype, shape = _dtype(word), _shape(axes)
        start = _aligned(offset)
        offset = start + math.prod(shape) * dtype.itemsize
        if offset > len(flat):
            raise RecordError(f"its layout is of {offset} bytes or more, not {len(flat)}")
        view = flat[start:offset].view(dtype).reshape(shape)
        unpacked[name] = LazyArray(view)
    if offset != len(flat):
        raise RecordError(f"its layout is of {offset} bytes, not {len(flat)}")
    return unpacked


def _words(layout: ConfigRecord, key: str) -> list[str]:
    words = layout.get(key)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RecordError(f"its layout has no list of {key}")
    return words  # type: ignore[return-value]


def _dtype(word: str) -> "np.dtype[np.generic]":
    try:
        if _DTYPE.fullmatch(word):
            return np.dtype(word)
    except TypeError:
        pass
    raise RecordError(f"its layout names the dtype {word!r:.20}")


def _shape(axes: str) -> tuple[int, ...]:
    if not _SHAPE.fullmatch(axes):
        raise RecordError(f"its layout names the shape {axes!r:.40}")
    return tuple(int(length) for length in axes.split(",") if length)
