"""Arbitrary and mutated records: nothing comes out but our own errors, and nothing swells.

``FEDSUITE_FAULTS=all`` tries ten thousands of them, otherwise some hundreds.
"""

import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsuite.core.errors import one_line
from fedsuite.messages.array_records import RecordError, array_header, to_arrays, view_array
from fedsuite.messages.legacy import from_legacy
from fedsuite.messages.records import (
    EVALUATE,
    TRAIN,
    add_entry,
    split_replies,
    unpack_requests,
)
from fedsuite.rounds.validation import BadReply, Expected, check_reply
from tests.helpers import MEAN_WITHOUT, for_client, run_tampered

EXAMPLES = 10_000 if os.environ.get("FEDSUITE_FAULTS") == "all" else 60
fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None
)

# What an input of n bytes may cost.
PER_BYTE = 32
AT_LEAST = 2**18


@contextmanager
def bounded(size: int) -> Iterator[None]:
    """Fail if more memory is taken than an input of that size may cost."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= AT_LEAST + PER_BYTE * size


# Bytes that look like an array: a right one with wounds, or a header of any literal.

WHOLE = Array(np.arange(6, dtype=np.float32).reshape(2, 3)).data
LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 2**70)
    | st.text(max_size=8)
    | st.sampled_from(["<f4", ">f8", "|O", "|b1", "<U4", "<M8[s]", "<c8", "|V4", "<f16"]),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=6,
)
TEXTS = st.fixed_dictionaries(
    {},
    optional={
        "descr": st.sampled_from(["<f4", "<f8", "|O", "<i8", "|b1", "<f4,<i4"]) | LITERALS,
        "fortran_order": st.booleans() | LITERALS,
        "shape": st.lists(
            st.integers(-2, 4) | st.integers() | st.booleans(), max_size=40
        ).map(tuple)
        | LITERALS,
        "more": LITERALS,
    },
).map(repr)
PRINTED = TEXTS | st.text(max_size=60) | st.just("{'descr': '<f4'," + "(" * 900)
UNPRINTABLE = st.builds(
    lambda first, digits: (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({first}0x{'f' * digits},)}}"
    ),
    st.sampled_from(["", "0,", "2,3,"]),
    st.integers(1, 9000),
)


def with_header(text: str, version: tuple[int, int], body: bytes) -> bytes:
    encoded = text.encode("latin1", "replace")
    width = 2 if version == (1, 0) else 4
    length = len(encoded).to_bytes(width, "little")
    return b"\x93NUMPY" + bytes(version) + length + encoded + body


HEADED = st.builds(
    with_header,
    PRINTED | UNPRINTABLE,
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    st.binary(max_size=64),
)


@st.composite
def wounded(draw: st.DrawFn) -> bytes:
    data = bytearray(WHOLE)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(start + 8, len(data))))
        data[start:end] = draw(st.binary(max_size=8))
    return bytes(data)


BYTES = wounded() | HEADED | st.binary(max_size=200)
ARRAYS = st.builds(
    lambda data, stype, dtype, shape: Array(
        dtype=dtype, shape=shape, stype=stype, data=data
    ),
    BYTES | st.just(WHOLE),
    st.just("numpy.ndarray") | st.text(max_size=20),
    st.text(max_size=8),
    st.lists(st.integers(-1, 2**70), max_size=3).map(tuple),
)

# Records of any kind under names that mean something, or nothing.

WORDS = """
arrays metrics config error num-examples num_examples weight loss code message
fitres.parameters fitres.num_examples fitres.metrics fitres.status
evaluateres.loss evaluateres.num_examples evaluateres.status
client-ids start-versions keep-versions
"""
NAMES = (
    st.sampled_from(WORDS.split())
    | st.builds(
        "client-{}.{}".format,
        st.integers(-1, 3) | st.text(max_size=3),
        st.sampled_from(["arrays", ""]),
    )
    | st.text(max_size=12)
)
NUMBERS = st.integers() | st.floats() | st.integers(10**300, 10**400)
METRICS = st.dictionaries(NAMES, NUMBERS | st.lists(st.floats(), max_size=3), max_size=4)
SCALARS = st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary()
CONFIGS = st.dictionaries(
    NAMES,
    SCALARS | st.lists(st.integers(), max_size=3) | st.lists(st.text(), max_size=3),
    max_size=4,
)


def array_record(arrays: dict[str, Array]) -> ArrayRecord:
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


RECORDS = (
    st.dictionaries(NAMES, ARRAYS, max_size=3).map(array_record)
    | METRICS.map(MetricRecord)
    | CONFIGS.map(ConfigRecord)
)
CONTENTS = st.dictionaries(NAMES, RECORDS, max_size=6).map(RecordDict)


def size_of(content: RecordDict) -> int:
    arrays = (r for r in content.values() if isinstance(r, ArrayRecord))
    return len(repr(content)) + sum(len(a.data) for r in arrays for a in r.values())


def attempt(work: Callable[[], object]) -> None:
    """Do some work that may refuse its input, in words that fit a log."""
    try:
        work()
    except (RecordError, BadReply) as error:
        assert one_line(error).isprintable()
        assert len(str(error)) < 1000


@fuzzed
@given(ARRAYS)
def test_arrays(array: Array) -> None:
    with bounded(len(array.data)):
        attempt(lambda: array_header(array))
        attempt(lambda: view_array(array))


@fuzzed
@given(ARRAYS)
def test_header_and_view_agree(array: Array) -> None:
    try:
        view = view_array(array)
    except RecordError:
        with pytest.raises(RecordError):
            array_header(array)
        return
    assert array_header(array) == (view.shape, view.dtype)
    assert view.nbytes <= len(array.data)
    assert not view.flags.writeable


EXPECTED = Expected(
    {"arrays": {"weight": ((2, 3), "float32")}}, bounds={"loss": (0.0, 9.0)}, largest=5.0
)


@fuzzed
@given(CONTENTS)
def test_replies(content: RecordDict) -> None:
    with bounded(size_of(content)):
        attempt(lambda: check_reply(0, content, EXPECTED))
        attempt(lambda: check_reply(0, content, Expected(weight_key="loss")))


@fuzzed
@given(CONTENTS, st.lists(st.integers(-1, 3), max_size=4))
def test_replies_of_several_clients(content: RecordDict, client_ids: list[int]) -> None:
    with bounded(size_of(content)):
        entries = split_replies(content, client_ids)
    assert set(entries) <= set(client_ids)
    for client_id, entry in entries.items():
        for name, record in entry.items():
            assert content[f"client-{client_id}.{name}"] is record


@fuzzed
@given(CONTENTS, st.sampled_from([TRAIN, EVALUATE]), st.lists(st.text(), max_size=2))
def test_legacy_replies(content: RecordDict, message_type: str, names: list[str]) -> None:
    def read() -> None:
        check_reply(0, from_legacy(content, message_type, names), EXPECTED)

    with bounded(size_of(content)):
        attempt(read)


@fuzzed
@given(CONTENTS, CONFIGS, st.none() | st.lists(st.integers(-1, 3), max_size=3))
def test_requests(
    content: RecordDict, config: dict[str, object], client_ids: list[int] | None
) -> None:
    """What a client reads: a broken server must not break it in other ways either."""
    hosted = {} if client_ids is None else {"client-ids": client_ids}
    content["config"] = ConfigRecord({**config, **hosted})  # type: ignore[arg-type]
    with bounded(size_of(content)):
        attempt(lambda: unpack_requests(content, TRAIN, "1.1", 0))


def test_whole_records_pass() -> None:
    """The fuzzed functions accept something: what they refuse is refused for a reason."""
    weight = np.ones((2, 3), np.float32)
    record = array_record({"weight": Array(weight)})
    metrics = MetricRecord({"num-examples": 2, "loss": 1.0})
    content = RecordDict({"arrays": record, "metrics": metrics})
    assert check_reply(0, content, EXPECTED).num_examples == 2.0
    assert to_arrays(record)["weight"].tolist() == weight.tolist()
    entry = RecordDict()
    add_entry(entry, 1, "x")
    assert set(split_replies(entry, [0, 1])) == {1}


@settings(parent=fuzzed, max_examples=EXAMPLES // 10)
@given(CONTENTS)
def test_a_round_survives_any_reply(content: RecordDict) -> None:
    """Through the real messages, strategy and reader."""

    def replace(reply: RecordDict, prefix: str) -> None:
        for name in list(reply):
            del reply[name]
        reply.update(content)

    trace = run_tampered("single", for_client(1, "single", replace), num_rounds=1)
    [rejection] = trace.reports[0].train.rejections
    assert rejection.reason.isprintable()
    assert trace.weights == [MEAN_WITHOUT[1]]
