"""Checks that a reply must pass before anything in it is used."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from numpy.typing import NDArray

from fedsuite.core.errors import one_line
from fedsuite.core.keys import Value
from fedsuite.core.metrics import Range
from fedsuite.messages.array_records import (
    RecordError,
    array_header,
    dtype_name,
    num_bytes,
    to_arrays,
    to_record,
    view_array,
)
from fedsuite.messages.compression import CodedModel, HalfModel
from fedsuite.messages.records import (
    ARRAYS,
    FOLLOWED,
    STORED_STATE,
    AnyRecord,
    Arrays,
    ConfigValue,
    records_of,
)
from fedsuite.messages.statistics import is_variance
from fedsuite.rounds.infinite_entries import InfiniteEntries, Mask, all_finite, cleared
from fedsuite.rounds.kinds import Kind

ArraySpec = tuple[tuple[int, ...], str]
"""Shape and dtype of one array."""

RecordSpec = dict[str, ArraySpec]
"""Array name to shape and dtype."""

LARGEST_COUNT = 2.0**53
"""No count of examples beyond this: products with it could leave float64's range."""

MOST_METRICS = 1000
"""No reply with more metrics than this: each becomes a column of a table."""

MOST_LISTED = 10_000
"""No reply with more numbers in lists: a table of 100 times 100 classes has as many."""

LONGEST_NAME = 200
"""No metric with a longer name, in characters."""

OTHER_NAMES = "arrays of a record"
"""What is missing where arrays of other names came than were sent."""

_WEIGHT_ADVICE = (
    "report the client's number of examples, or give the name that it has as "
    "weighted_by_key"
)


class BadReply(Exception):
    """A reply, or one client's entry in it, that is not used.

    Parameters
    ----------
    kind
        What is wrong.
    reason
        The same for people, with what to do about it.
    what
        What is missing, or the class of a client's exception, whoever's reply it is.
    """

    def __init__(self, kind: Kind, reason: str, what: str = "") -> None:
        super().__init__(reason)
        self.kind = kind
        self.what = what


SUM = -1
"""Number of the client whose reply a secure sum is; none has it."""


@dataclass(frozen=True)
class ClientReply:
    """A reply that passed all checks.

    Parameters
    ----------
    client_id
        The client that it came from; :data:`SUM` of a secure sum.
    arrays
        Record name to named arrays, read-only, in the order in which they were announced.
    metrics
        Finite numbers by name.
    num_examples
        Weight of the client: finite and not negative.
    stored_state
        Whether the client says that it stored a new version of its state.
    content
        The records as they came, by the client's own names.
    num_bytes
        Payload of the arrays as they came.
    converted
        Says which array came in another width or byte order than the model's and was
        turned to it; empty of none.
    stand_ins
        Metric to the name of the one that stands for it, as :class:`Expected` allows.
    left_out
        Metrics that are NaN, infinite or out of their range, which are not among
        ``metrics``.
    infinite
        Array to where it has the infinities that were sent; there ``arrays`` have 0.
    claimed_examples
        What the client said, where the guard lets fewer examples count.
    num_summed
        How many clients it counts for: 1, and in a secure sum those with examples.
    unfollowed
        Settings of the message that it does not repeat, to what it says instead; None of
        nothing.
    """

    client_id: int
    arrays: Mapping[str, Arrays]
    metrics: Mapping[str, float]
    num_examples: float
    stored_state: bool = False
    content: Mapping[str, AnyRecord] = field(default_factory=dict, repr=False)
    num_bytes: int = 0
    converted: str = ""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, float] = field(default_factory=dict)
    infinite: Mapping[str, Mask] = field(default_factory=dict, repr=False)
    claimed_examples: float | None = None
    num_summed: int = 1
    unfollowed: Mapping[str, ConfigValue | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What replies to an exchange must hold.

    Parameters
    ----------
    arrays
        Record name to the arrays in it; exactly these.
    one_of
        Whether exactly one of these records must come, in place of all.
    metrics
        Metrics that must be there, beside the weight.
    bounds
        Metrics that must be there too, each with its least and its largest value.
    range_of
        What a metric of a name can be; one beyond it is left out.
    steering
        Metrics, as columns of a report, that must be finite where they are there; others
        are left out that are not.
    weight_key
        Metric that holds the number of examples.
    stand_ins
        Metric to the name of another that stands for it where it is missing.
    advice
        What to tell an app's author whose replies lack a record or a metric.
    advice_of
        Metric to what to tell an author whose replies lack it.
    largest
        Largest magnitude of any number in the arrays; None for no limit.
    settings
        The method's settings in the message, which a client that follows them repeats: in
        its ConfigRecord ``followed``, or a number among its metrics.
    check
        Looks at a reply that passed all else, and raises :class:`BadReply` with a reason.
    infinite
        Entries that were infinite when sent, and may be so still; None of none.
    coding
        What decodes the record of the model; None where it comes as it is.
    """

    arrays: Mapping[str, RecordSpec] = field(default_factory=dict)
    metrics: Sequence[str] = ()
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    range_of: Callable[[str], Range] = lambda name: (-math.inf, math.inf)
    steering: Collection[str] = ()
    weight_key: str = "num-examples"
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""
    advice_of: Mapping[str, str] = field(default_factory=dict)
    largest: float | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    check: Callable[[ClientReply], None] | None = None
    one_of: bool = False
    infinite: InfiniteEntries | None = field(default=None, compare=False)
    coding: CodedModel | HalfModel | None = field(default=None, compare=False)


def spec_of(arrays: Mapping[str, NDArray[Any]]) -> RecordSpec:
    """Return the shapes and dtypes of named arrays."""
    return {name: (array.shape, dtype_name(array.dtype)) for name, array in arrays.items()}


def check_reply(
    client_id: int, content: Mapping[str, AnyRecord], expected: Expected
) -> ClientReply:
    """Check one client's records and return them unpacked.

    Raises
    ------
    BadReply
        With the reason, in words fit for a log: names and numbers, never the payload.
    """
    arrays, size, converted = {}, 0, ""
    infinite: dict[str, Mask] = {}
    for name, spec in _wanted(content, expected).items():
        came, coded_size = _find_record(content, name, expected), 0
        if expected.coding is not None and name == ARRAYS:
            coded = to_arrays(came)
            came = to_record(expected.coding.decoded(coded, client_id))
            coded_size = num_bytes(coded)
        taken = _Found(came, spec, expected)
        arrays[name] = taken.arrays
        for place, held in taken.infinite.items():
            infinite[place] = held | infinite.get(place, np.False_)
        size += coded_size or taken.num_bytes
        converted = converted or taken.converted
    metrics, stand_ins, left_out = _check_metrics(content, expected)
    unfollowed = _take_settings(content, metrics, expected.settings)
    stored = bool(metrics.pop(STORED_STATE, 0.0))
    num_examples = _check_weight(expected.weight_key, metrics.pop(expected.weight_key))
    reply = ClientReply(
        client_id,
        arrays,
        metrics,
        num_examples,
        stored,
        content,
        num_bytes=size,
        converted=converted,
        stand_ins=stand_ins,
        left_out=left_out,
        infinite=infinite,
        unfollowed=unfollowed,
    )
    if expected.check is not None:
        expected.check(reply)
    return reply


def _take_settings(
    content: Mapping[str, AnyRecord],
    metrics: dict[str, float],
    settings: Mapping[str, Value],
) -> dict[str, ConfigValue | None]:
    """Take the settings out of the metrics; return those that the reply does not repeat."""
    if not settings:
        return {}
    record = records_of(content, ConfigRecord).get(FOLLOWED, ConfigRecord())
    returned = {name: metrics.pop(name, record.get(name)) for name in settings}
    return {k: said for k, said in returned.items() if not _same(said, settings[k])}


def _same(returned: ConfigValue | None, value: Value) -> bool:
    """Return whether a setting came back as it was sent, but for a client's float32."""
    if isinstance(returned, int | float) and isinstance(value, int | float):
        return abs(returned) <= LARGEST_COUNT and math.isclose(
            returned, value, rel_tol=1e-6
        )
    return returned == value


def _wanted(
    content: Mapping[str, AnyRecord], expected: Expected
) -> Mapping[str, RecordSpec]:
    """Return the records that must be there: of several to choose from, the one that is."""
    if not expected.one_of:
        return expected.arrays
    records = records_of(content, ArrayRecord)
    came = [name for name in expected.arrays if name in records]
    if len(came) > 1:
        raise BadReply(
            Kind.WRONG_ARRAYS,
            f"{len(came)} array records came, and one of them was asked for",
        )
    name = came[0] if came else ARRAYS
    return {name: expected.arrays[name]}


def _find_record(
    content: Mapping[str, AnyRecord], name: str, expected: Expected
) -> ArrayRecord:
    records = records_of(content, ArrayRecord)
    if name in records:
        extra = ", ".join(sorted(set(records) - set(expected.arrays)))
        if extra:
            raise BadReply(
                Kind.WRONG_ARRAYS, f"unexpected array record: {one_line(extra, 100)}"
            )
        return records[name]
    # A stranger's app may call its only record as it likes.
    if len(records) == len(expected.arrays) == 1 and name == ARRAYS:
        return next(iter(records.values()))
    advice = expected.advice
    if name == ARRAYS and len(records) > 1:
        advice = "give the name that the model's record has as arrayrecord_key"
    came = one_line(", ".join(sorted(records)) or "none", 100)
    reason = f"array record {name!r} is missing (found: {came})"
    raise BadReply(Kind.MISSING, with_advice(reason, advice), name)


def with_advice(reason: str, advice: str) -> str:
    """Return a reason, and what to do about it if anything is known."""
    return f"{reason}: {advice}" if advice else reason


def _with_names(record: ArrayRecord, spec: RecordSpec) -> Mapping[str, Array]:
    """Return a record; arrays that came as a list have the names that were sent, in order.

    Flower numbers the arrays of ``ArrayRecord(list_of_ndarrays)`` from 0.
    """
    numbers = [str(place) for place in range(len(spec))]
    if set(record) == set(spec) or set(record) != set(numbers):
        return record
    return {name: record[number] for name, number in zip(spec, numbers, strict=True)}


class _Found:
    """The arrays of one record of a reply, checked, in the dtypes that were announced."""

    def __init__(self, came: ArrayRecord, spec: RecordSpec, expected: Expected) -> None:
        record = _with_names(came, spec)
        if set(record) != set(spec):
            missing = sorted(set(spec) - set(record))
            extra = sorted(set(record) - set(spec))
            reason = (
                f"array names differ: {len(missing)} missing {one_line(missing[:3], 80)}, "
                f"{len(extra)} unexpected {one_line(extra[:3], 80)}"
            )
            reason = with_advice(reason, expected.advice)
            raise BadReply(Kind.MISSING, reason, OTHER_NAMES)
        largest = expected.largest
        self.arrays: Arrays = {}
        self.infinite: dict[str, Mask] = {}
        self.num_bytes = 0
        self.converted = ""
        for name, (shape, dtype) in spec.items():
            try:
                array = self._take(name, record[name], shape, dtype)
            except RecordError as error:
                reason = f"array {name}: {one_line(error)}"
                raise BadReply(Kind.WRONG_ARRAYS, reason) from None
            sent = expected.infinite
            held = None if sent is None else sent.held(name, array)
            if held is not None:
                array = cleared(array, held)
                self.infinite[name] = held
            if not all_finite(array):
                raise BadReply(Kind.NOT_FINITE, f"array {name}: holds NaN or infinity")
            if largest is not None and np.abs(array).max(initial=0) > largest:
                reason = f"array {name}: holds a number beyond {largest:g}"
                raise BadReply(Kind.WRONG_ARRAYS, reason)
            _check_statistic(name, array)
            self.arrays[name] = array

    def _take(
        self, name: str, array: Array, shape: tuple[int, ...], dtype: str
    ) -> NDArray[Any]:
        found_shape, dtype_sent = array_header(array)
        if found_shape != shape:
            reason = f"array {name}: shape {found_shape}, expected {shape}"
            raise BadReply(Kind.WRONG_ARRAYS, reason)
        self.num_bytes += dtype_sent.itemsize * math.prod(shape)
        if dtype_name(dtype_sent) == dtype:
            return view_array(array)
        # NumPy makes float64 of much that began as float32, and scikit-learn float32 of
        # what began as float64: Flower's strategies take both.
        if dtype_sent.kind != "f" or np.dtype(dtype).kind != "f":
            reason = f"array {name}: dtype {dtype_sent}, expected {dtype}"
            raise BadReply(Kind.WRONG_ARRAYS, reason)
        self.converted = self.converted or f"array {name} from {dtype_sent} to {dtype}"
        with np.errstate(over="ignore"):
            cast = view_array(array).astype(dtype)
        cast.flags.writeable = False
        return cast


def _check_statistic(name: str, array: NDArray[Any]) -> None:
    """Refuse a variance or a counter that no client can have measured."""
    kind = name.rpartition(".")[2]
    if kind != "num_batches_tracked" and not is_variance(name):
        return
    if array.min(initial=0) < 0:
        reason = f"array {name}: holds a variance or counter below 0"
        raise BadReply(Kind.WRONG_ARRAYS, reason)
    if kind == "num_batches_tracked" and array.max(initial=0) > LARGEST_COUNT:
        raise BadReply(Kind.WRONG_ARRAYS, f"array {name}: no counter is that large")


def _check_weight(key: str, num_examples: float) -> float:
    if num_examples < 0:
        raise BadReply(Kind.WRONG_METRICS, f"{key} is {num_examples:g}: must be >= 0")
    if num_examples > LARGEST_COUNT:
        reason = f"{key} is {num_examples:g}: no data set is that large"
        raise BadReply(Kind.WRONG_METRICS, reason)
    return num_examples


def _advice_on(missing: Sequence[str], expected: Expected) -> str:
    """Return what to do about missing metrics, and nothing about those that came."""
    if missing[0] == expected.weight_key:
        return _WEIGHT_ADVICE
    if not all(name in expected.advice_of for name in missing):
        return expected.advice
    return "; ".join(expected.advice_of[name] for name in missing)


def _check_metrics(
    content: Mapping[str, AnyRecord], expected: Expected
) -> tuple[dict[str, float], dict[str, str], dict[str, float]]:
    """Return the numbers among the metrics, which stands for which, and what is left out.

    What is not finite is left out, unless something is steered by it: the AUC of a client
    with one class says nothing of its model. So is what no client can have measured, such
    as an accuracy of 95. No reader of metrics sees either, and none checks again.
    """
    metrics: dict[str, float] = {}
    left_out: dict[str, float] = {}
    needed = {expected.weight_key, *expected.metrics, *expected.bounds}
    records = records_of(content, MetricRecord).values()
    count = sum(map(len, records))
    if count > MOST_METRICS:
        reason = f"{count} metrics: at most {MOST_METRICS} are taken"
        raise BadReply(Kind.WRONG_METRICS, reason)
    values = (value for record in records for value in record.values())
    listed = sum(len(value) for value in values if isinstance(value, list))
    if listed > MOST_LISTED:
        reason = f"{listed} numbers in lists of metrics: at most {MOST_LISTED} are taken"
        raise BadReply(Kind.WRONG_METRICS, reason)
    for record in records:
        for name, value in record.items():
            if len(name) > LONGEST_NAME or not name.isprintable():
                reason = f"metric {one_line(name, 60)!r}: the name is no plain word"
                raise BadReply(Kind.WRONG_METRICS, reason)
            if isinstance(value, list):
                continue
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            least, largest = expected.range_of(name)
            if math.isfinite(number) and (name in needed or least <= number <= largest):
                metrics[name] = number
            elif math.isfinite(number):
                left_out[name] = number
            elif name in needed or name.replace("-", "_") in expected.steering:
                reason = f"metric {one_line(name, 60)} is {number}"
                raise BadReply(Kind.NOT_FINITE, reason)
            else:
                left_out[name] = number
    for name, other in expected.stand_ins.items():
        if name not in metrics and other in left_out:
            reason = f"metric {one_line(other, 60)} is {left_out[other]}"
            raise BadReply(Kind.NOT_FINITE, reason)
    stand_ins = {
        name: other
        for name, other in expected.stand_ins.items()
        if name not in metrics and other in metrics
    }
    metrics.update((name, metrics[other]) for name, other in stand_ins.items())
    wanted = (expected.weight_key, *expected.metrics, *expected.bounds)
    if missing := [name for name in wanted if name not in metrics]:
        came = ", ".join(sorted(set(metrics) - set(stand_ins))) or "none"
        reason = f"metric {missing[0]!r} is missing (found: {one_line(came, 100)})"
        reason = with_advice(reason, _advice_on(missing, expected))
        raise BadReply(Kind.MISSING, reason, missing[0])
    for name, (least, largest) in expected.bounds.items():
        if not least <= metrics[name] <= largest:
            raise BadReply(
                Kind.WRONG_METRICS,
                f"metric {name} is {metrics[name]:g}: expected {least:g} to {largest:g}",
            )
    return metrics, stand_ins, left_out
