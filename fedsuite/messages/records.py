"""Messages between server and clients, packed into Flower's records.

Both sides import this module and nothing of each other. A *node* is a Flower node. A
*client* is a participant of the federation. One node may host several clients. There are
two layouts:

- *single*: one client per node, as in Flower's quickstarts. A request has an ArrayRecord
  ``arrays`` and a ConfigRecord ``config``. A reply has an ArrayRecord ``arrays`` and a
  MetricRecord ``metrics``.
- *hosted*: ``config`` lists ``client-ids``. Shared arrays travel once. Records of one
  client are named ``client-ID.NAME``. The reply has one entry per client: the client's
  records, or ``client-ID.error``.

``fedsuite.messages.legacy`` translates the single layout to Flower's legacy NumPyClient
records.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsuite.core.errors import FedsuiteError

Arrays = dict[str, NDArray[Any]]
"""Named arrays in a fixed order, usually that of a model's ``state_dict``."""

_MOST_AXES = 32
_MOST_ENTRIES = 2**48
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biufcmMOSUV][0-9]{0,3})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:-?[0-9]{1,15}(?:, ?-?[0-9]{1,15}){0,63},?)?)\),? ?\} *\n?"
)

Scalar = bool | int | float | str | bytes
ConfigValue = Scalar | list[int] | list[float] | list[bool] | list[str] | list[bytes]
MetricValue = int | float | list[int] | list[float]

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
ERROR = "error"
NUM_EXAMPLES = "num-examples"
NUM_STEPS = "num-steps"
LOSS_BEFORE = "loss-before"
LOSS_AFTER = "loss-after"
GRADIENT = "gradient"
CONTROL = "control"
CONTROL_CHANGE = "control-change"
DRIFT = "drift"
PLAIN_MEAN = "plain-mean"
MEAN_EXAMPLES = "mean-examples"
SELECTED = "selected"
LOSSES = "losses"
NUM_BATCHES = "num-batches"
UPDATE = "update"
STATISTICS = "statistics"
HELD = "held"
OUTPUTS = "outputs"
MEAN_OUTPUTS = "mean-outputs"
SERVER_OUTPUTS = "server-outputs"
ADVERSARIAL_GRADIENT = "adversarial-gradient"
LOGITS = "logits"
FEATURES = "features"
CLASS_TABLE = "class-table"
RANKING = "ranking"
REFERENCE = "reference"
SHARES = "shares"
CLUSTER = "cluster"
ROWS = "rows"
COUNTS = "counts"
CLASSES = "classes"
PROBABILITIES = "probabilities"
SIMILARITIES = "similarities"
SERVER_ROUND = "server-round"
LEARNING_RATE = "learning-rate"
CLIENT_IDS = "client-ids"
START_VERSIONS = "start-versions"
KEEP_VERSIONS = "keep-versions"

TRAIN = "train"
EVALUATE = "evaluate"
HELLO = "query.hello"
PROBE = "query.probe"
RANK = "query.rank"
FEATURE_WIDTH = "query.feature_width"
COUNT_EXAMPLES = "query.count_examples"
ALONE = "train.alone"
LOCAL_PHASE = "train.local_phase"
TRANSFER = "train.transfer"


def model_record(number: int) -> str:
    """Return the record's name of one of several models."""
    return f"model-{number}"


def is_model_record(name: str) -> bool:
    """Return whether a record's name is that of one of several models."""
    return re.fullmatch("model-[0-9]+", name) is not None


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
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = LazyArray(array)
    return record


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
        raise RecordError(f"dtype {dtype} is not allowed")
    shape = tuple(int(length) for length in axes.split(",") if length.strip())
    entries = math.prod(max(abs(length), 1) for length in shape)
    if len(shape) > _MOST_AXES or entries > _MOST_ENTRIES:
        raise RecordError("array claims a shape that no array has")
    size = dtype.itemsize * math.prod(shape)
    if size != len(data) - offset or any(length < 0 for length in shape):
        raise RecordError(f"array of shape {shape} does not fit its {len(data)} bytes")
    return shape, dtype, offset, "F" if order == "True" else "C"


def to_arrays(record: ArrayRecord) -> Arrays:
    """Unpack a record into named arrays, each as :func:`view_array` returns it."""
    return {name: view_array(array) for name, array in record.items()}


def own_record(record: ArrayRecord) -> ArrayRecord:
    """Return a record of arrays in C order, the same record if possible."""
    if all(isinstance(array, LazyArray) for array in record.values()):
        return record
    return to_record(to_arrays(record))


def num_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of named arrays in bytes."""
    return sum(array.nbytes for array in arrays.values())


@dataclass(frozen=True)
class Request:
    """Request to one client.

    Parameters
    ----------
    message_type
        Flower message type, such as ``"train"`` or ``"query.probe"``.
    client_id
        The client asked.
    arrays
        Record name to named arrays; ``"arrays"`` is the shared model. Read-only.
    config
        Settings of the round.
    start_version
        Version of the stored state to start from; empty for none.
    keep_version
        Versions that checkpoints need, comma-separated; empty for none.
    new_version
        Version under which new state is stored; empty for a client used by hand, which
        stores nothing.
    """

    message_type: str
    client_id: int
    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    start_version: str = ""
    keep_version: str = ""
    new_version: str = ""

    @property
    def needed_versions(self) -> set[str]:
        """Versions of the stored state that must stay."""
        return {self.start_version, *self.keep_version.split(",")}

    @property
    def server_round(self) -> int:
        """Current round, from 1; 1 by default."""
        value = self.config.get(SERVER_ROUND, 1)
        return value if isinstance(value, int) else 1

    def number(self, name: str) -> float:
        """Return a number that the strategy must have sent along.

        Raises
        ------
        RecordError
            If the config has none of that name.
        """
        value = self.config.get(name)
        if not isinstance(value, int | float):
            raise RecordError(
                f"client {self.client_id}: the message has no number {name}: use the "
                "strategy that belongs to this client, or put it into the config"
            )
        return float(value)


@dataclass(frozen=True)
class Reply:
    """Reply of one client: named array records and metrics."""

    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)


AnyRecord = ArrayRecord | ConfigRecord | MetricRecord
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: Mapping[str, AnyRecord], kind: type[Record]) -> dict[str, Record]:
    """Return the records of one kind by name.

    Flower's own ``content.array_records`` leaves a reference cycle, which keeps the
    message's arrays in memory until the garbage collector runs.
    """
    return {name: item for name, item in content.items() if isinstance(item, kind)}


def client_record(client_id: int, name: str) -> str:
    """Return the name of one client's record."""
    return f"client-{client_id}.{name}"


def add_entry(
    content: RecordDict, client_id: int, outcome: Reply | str, place: str = ""
) -> None:
    """Add one client's entry to a hosted reply; a string is the reason of a failure.

    Parameters
    ----------
    place
        Error and place in the client's code, if that is the reason.
    """
    if isinstance(outcome, str):
        entry = {"reason": outcome, "place": place} if place else {"reason": outcome}
        content[client_record(client_id, ERROR)] = ConfigRecord(dict(entry))
        return
    # Packed before anything is added, so that a failure leaves no half a reply.
    metrics = MetricRecord(dict(outcome.metrics))
    records = {name: to_record(arrays) for name, arrays in outcome.arrays.items()}
    for name, record in records.items():
        content[client_record(client_id, name)] = record
    content[client_record(client_id, METRICS)] = metrics


def failures_in(content: RecordDict) -> list[tuple[str, str]]:
    """Return place and reason of all clients' errors; empty if any client had none."""
    found = []
    for name, record in content.items():
        if not isinstance(record, ConfigRecord) or "place" not in record:
            return []
        if name.endswith(f".{ERROR}"):
            found.append((str(record["place"]), str(record["reason"])))
    return found


def pack_reply(reply: Reply) -> RecordDict:
    """Pack the reply of a node's only client."""
    content = RecordDict({name: to_record(a) for name, a in reply.arrays.items()})
    content[METRICS] = MetricRecord(dict(reply.metrics))
    return content


def split_replies(
    content: RecordDict, client_ids: Iterable[int]
) -> dict[int, dict[str, AnyRecord]]:
    """Return the records of a hosted reply by known client."""
    # One pass, however many records a node sends.
    entries: dict[int, dict[str, AnyRecord]] = {k: {} for k in client_ids}
    owners = {f"client-{client_id}": entry for client_id, entry in entries.items()}
    for name, record in content.items():
        head, dot, tail = name.partition(".")
        if dot and head in owners:
            owners[head][tail] = record
    return {client_id: entry for client_id, entry in entries.items() if entry}


def unpack_requests(
    content: RecordDict, message_type: str, group_id: str, only_client: int
) -> tuple[list[Request], bool]:
    """Return one request per client, and whether the layout is hosted.

    Parameters
    ----------
    content
        Content of the message.
    message_type
        Its type.
    group_id
        Round and exchange of the message.
    only_client
        Id of the node's client in the single layout, whose messages name no client.
    """
    # items(), because dict() reads Flower's records slowly.
    config = dict(_only(records_of(content, ConfigRecord), CONFIG).items())
    hosted = CLIENT_IDS in config
    client_ids = _int_list(config.pop(CLIENT_IDS)) if hosted else [only_client]
    count = len(client_ids)
    start = _str_list(config.pop(START_VERSIONS, [""] * count), count)
    keep = _str_list(config.pop(KEEP_VERSIONS, [""] * count), count)
    shared: dict[str, Arrays] = {}
    own: dict[str, dict[str, Arrays]] = {}
    for name, record in records_of(content, ArrayRecord).items():
        head, _, tail = name.partition(".")
        if hosted and tail and head.startswith("client-"):
            own.setdefault(head, {})[tail] = to_arrays(record)
        else:
            shared[name] = to_arrays(record)
    return [
        Request(
            message_type=message_type,
            client_id=client_id,
            arrays={**shared, **own.get(f"client-{client_id}", {})},
            config=config,
            start_version=start[index],
            keep_version=keep[index],
            new_version=group_id,
        )
        for index, client_id in enumerate(client_ids)
    ], hosted


def joined(groups: Mapping[Any, Arrays]) -> Arrays:
    """Return arrays of groups as ``group/name`` to array, for a state."""
    return {f"{k}/{name}": a for k, named in groups.items() for name, a in named.items()}


def grouped(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Arrays]:
    """Return group to arrays by name: the inverse of :func:`joined`."""
    groups: dict[str, Arrays] = {}
    for path, array in arrays.items():
        group, _, name = path.partition("/")
        groups.setdefault(group, {})[name] = array
    return groups


def _only(records: Mapping[str, ConfigRecord], name: str) -> Mapping[str, ConfigValue]:
    """Return the record of a name, or else the only record, or else an empty one."""
    if name in records:
        return records[name]
    return next(iter(records.values())) if len(records) == 1 else {}


def _int_list(value: ConfigValue) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise RecordError(f"{CLIENT_IDS} is not a list of client numbers")
    return [item for item in value if isinstance(item, int)]


def _str_list(value: ConfigValue, count: int) -> Sequence[str]:
    if not isinstance(value, list) or len(value) != count:
        raise RecordError(f"the message names {count} clients, but not as many versions")
    return [str(item) for item in value]
