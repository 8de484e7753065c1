"""Messages as JSON with arrays in shared memory."""

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsuite.engines.pool.arena import Get, Place
from fedsuite.messages.array_records import LazyArray, view_array
from fedsuite.messages.records import Arrays

Put = Callable[[NDArray[Any]], Place]
Told = list[Any]
"""A record as JSON: its kind and content."""

_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"


def tell_content(
    content: RecordDict, put: Put, known: Callable[[ArrayRecord], Told | None]
) -> dict[str, Told]:
    """Return a message's content as JSON, with its arrays in shared memory.

    Parameters
    ----------
    content
        Records of arrays, settings and metrics.
    put
        Function that puts an array into shared memory.
    known
        JSON of records whose arrays already lie in shared memory.
    """
    told: dict[str, Told] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            told[name] = known(record) or tell_record(record, put)
        elif isinstance(record, MetricRecord):
            told[name] = [_METRICS, dict(record)]
        else:
            told[name] = [_CONFIG, {key: _tell(value) for key, value in record.items()}]
    return told


def tell_record(record: ArrayRecord, put: Put) -> Told:
    """Return a record of arrays as JSON, with its arrays in shared memory."""
    # A list keeps the order of any names.
    return [_ARRAYS, [[name, put(view_array(array))] for name, array in record.items()]]


def tell_arrays(arrays: Arrays, put: Put) -> Told:
    """Put named arrays into shared memory; return their JSON."""
    return [[name, put(array)] for name, array in arrays.items()]


def hear_arrays(told: Told, get: Get) -> Arrays:
    """Return the named arrays of :func:`tell_arrays`'s JSON."""
    return {name: get(place) for name, place in told}


def hear_content(told: dict[str, Told], get: Get) -> RecordDict:
    """Return the content of :func:`tell_content`'s JSON."""
    content = RecordDict()
    for name, (kind, held) in told.items():
        if kind == _ARRAYS:
            record = ArrayRecord()
            for key, place in held:
                record[key] = LazyArray(get(place))
            content[name] = record
        elif kind == _METRICS:
            content[name] = MetricRecord(held)
        else:
            content[name] = ConfigRecord({k: _hear(value) for k, value in held.items()})
    return content


def _tell(value: Any) -> Any:
    """Return a setting as JSON, which has no bytes."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_tell(item) for item in value] if isinstance(value, list) else value


def _hear(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_hear(item) for item in value] if isinstance(value, list) else value
