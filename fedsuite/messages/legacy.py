"""Translation between fedsuite's single layout and Flower's legacy NumPyClient records.

An unchanged ``ClientApp(client_fn=...)`` expects ``fitins.*`` and ``evaluateins.*`` records
and answers with ``fitres.*`` and ``evaluateres.*``. Legacy records have arrays by position
only, so names come from the request.
"""

from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsuite.messages.array_records import RecordError
from fedsuite.messages.records import (
    ARRAYS,
    CONFIG,
    EVALUATE,
    FOLLOWED,
    METRICS,
    NUM_EXAMPLES,
    TRAIN,
    AnyRecord,
    ConfigValue,
    MetricValue,
    records_of,
)


class ReportedError(RecordError):
    """A failure that a legacy client reports in its result."""


_INSTRUCTION = {TRAIN: "fitins", EVALUATE: "evaluateins"}
_RESULT = {TRAIN: "fitres", EVALUATE: "evaluateres"}


def to_legacy(content: RecordDict, message_type: str) -> RecordDict:
    """Rename the records of a single-layout request for a legacy client.

    Raises
    ------
    RecordError
        If legacy clients do not know the request's type.
    """
    if message_type not in _INSTRUCTION:
        raise RecordError(
            f"a legacy NumPyClient app cannot answer {message_type!r}: use a method with "
            "one exchange a round, or a Message-API client"
        )
    records = records_of(content, ArrayRecord)
    if set(records) != {ARRAYS}:
        raise RecordError(
            f"a legacy NumPyClient app takes one list of arrays, and this method sends "
            f"{sorted(records)}: use a Message-API client"
        )
    prefix = _INSTRUCTION[message_type]
    config: dict[str, ConfigValue] = {
        key: value
        for key, value in records_of(content, ConfigRecord)[CONFIG].items()
        if isinstance(value, bool | int | float | str | bytes)
    }
    positions = ArrayRecord()
    for position, array in enumerate(records[ARRAYS].values()):
        positions[str(position)] = array
    return RecordDict(
        {f"{prefix}.parameters": positions, f"{prefix}.config": ConfigRecord(config)}
    )


def from_legacy(
    content: Mapping[str, AnyRecord],
    message_type: str,
    names: Sequence[str],
) -> RecordDict:
    """Turn a legacy result into the records of a single-layout reply.

    Parameters
    ----------
    content
        Content of the reply.
    message_type
        Type of the request.
    names
        Names of the request's arrays, in order.

    Raises
    ------
    RecordError
        If the reply is not a legacy result, or has another number of arrays.
    """
    prefix = _RESULT[message_type]
    try:
        configs = records_of(content, ConfigRecord)
        numbers = records_of(content, MetricRecord)
        status = configs[f"{prefix}.status"]
        if status["code"] != 0:
            raise ReportedError(f"client reported: {status['message']!r}"[:200])
        reported = configs[f"{prefix}.metrics"]
        metrics: dict[str, MetricValue] = {
            key: value
            for key, value in reported.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        examples = numbers[f"{prefix}.num_examples"]["num_examples"]
        reply = RecordDict()
        if message_type == TRAIN:
            reply[ARRAYS] = _named(
                records_of(content, ArrayRecord)[f"{prefix}.parameters"], names
            )
        else:
            loss = numbers[f"{prefix}.loss"]["loss"]
            metrics.setdefault("loss", loss)
    except KeyError as error:
        raise RecordError(f"record {error} is missing: not a legacy result") from None
    reply[METRICS] = MetricRecord({**metrics, NUM_EXAMPLES: examples})
    # A legacy client has one place for its numbers and for all else, such as settings that
    # it followed, and text that the app's own mean of the metrics reads.
    if followed := {k: v for k, v in reported.items() if k not in metrics}:
        reply[FOLLOWED] = ConfigRecord(followed)
    return reply


def _named(record: ArrayRecord, names: Sequence[str]) -> ArrayRecord:
    if len(record) != len(names):
        raise RecordError(
            f"{len(record)} arrays came back, {len(names)} were sent: fit has to return as "
            "many as it gets, so start from a model of those"
        )
    named = ArrayRecord()
    for name, array in zip(names, record.values(), strict=True):
        named[name] = array
    return named
