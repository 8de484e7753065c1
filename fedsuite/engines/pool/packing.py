"""A message's records as JSON, and its arrays in shared memory."""

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsuite.engines.pool.arena import Get, Place
from fedsuite.messages.records import Arrays, LazyArray, view_array

Put = Callable[[NDArray[Any]], Place]
Told = list[Any]
"""A record as it stands in JSON: its kind and what is in it."""

_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"


def tell_content(
    content: RecordDict, put: Put, known: Callable[[ArrayRecord], Told | None]
) -> dict[str, Told]:
    """Return a message's content for JSON, its arrays put away.

    Parameters
    ----------
    content
        Holds records of arrays, settings and metrics.
    put
        Puts an array into shared memory.
    known
        What was told of a record before, if its arrays still lie there.
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
    """Return a record of arrays for JSON, its arrays put away."""
    # A list: names keep their order in it, whatever they are.
    return [_ARRAYS, [[name, put(view_array(array))] for name, array in record.items()]]


def tell_arrays(arrays: Arrays, put: Put) -> Told:
    """Return named arrays for JSON, put away."""
    return [[name, put(array)] for name, array in arrays.items()]


def hear_arrays(told: Told, get: Get) -> Arrays:
    """Return the named arrays that :func:`tell_arrays` told of."""
    return {name: get(place) for name, place in told}


def hear_content(told: dict[str, Told], get: Get) -> RecordDict:
    """Return the content that :func:`tell_content` told of."""
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
    """Return a setting for JSON, which knows no bytes."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_tell(item) for item in value] if isinstance(value, list) else value


def _hear(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_hear(item) for item in value] if isinstance(value, list) else value
