"""Arrays packed into one: same arrays on the other side, and damage told in one line."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.app import RecordDict as Content
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedsuite.engines.local import node_context
from fedsuite.messages.array_records import LazyArray, RecordError, to_arrays, to_record
from fedsuite.messages.records import failure_of
from fedsuite.workarounds import packed
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.packed import (
    LAYOUT,
    PACKED,
    Packing,
    pack,
    packing_mod,
    unpack,
    unpack_reply,
)

DTYPES = ["<f4", "<f8", "<f2", "<i8", "|u1", "|b1", ">i4"]
Arrays = dict[str, NDArray[Any]]


def wired(record: ArrayRecord) -> ArrayRecord:
    """Return a record as it arrives: Flower's own arrays."""
    return ArrayRecord(
        {
            name: Array(dtype=a.dtype, shape=tuple(a.shape), stype=a.stype, data=a.data)
            for name, a in record.items()
        }
    )


def arrived(content: Content) -> Content:
    return Content(
        {k: wired(r) if isinstance(r, ArrayRecord) else r for k, r in content.items()}
    )


@st.composite
def named_arrays(draw: st.DrawFn) -> Arrays:
    names = draw(st.lists(st.text(max_size=8), min_size=2, max_size=6, unique=True))
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return {
        name: draw(hnp.arrays(draw(st.sampled_from(DTYPES)), draw(shapes)))
        for name in names
    }


@given(named_arrays())
def test_arrays_come_back_as_they_were(arrays: Arrays) -> None:
    content = Content({"arrays": to_record(arrays), "config": ConfigRecord({"a": 1})})
    back = unpack(arrived(pack(content)))
    assert list(back) == ["arrays", "config"]
    found = to_arrays(back["arrays"])  # type: ignore[arg-type]
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_what_lies_where() -> None:
    arrays = {"b": np.array([1.0, 2.0], "<f4"), "a": np.array([[7, 8, 9]], "|u1")}
    packed = pack(Content({"arrays": to_record(arrays)}))
    layout = packed["arrays" + LAYOUT]
    assert dict(layout) == {  # type: ignore[call-overload]
        "names": ["b", "a"],
        "dtypes": ["<f4", "|u1"],
        "shapes": ["2", "1,3"],
    }
    record = packed["arrays"]
    assert isinstance(record, ArrayRecord)
    assert list(record) == [PACKED]
    flat = record[PACKED].numpy()
    # Two float32 take 8 bytes; the next array begins at 64.
    assert flat.dtype == np.uint8
    assert record[PACKED].shape == flat.shape == (67,)
    assert flat[:8].tobytes() == np.array([1.0, 2.0], "<f4").tobytes()
    assert not flat[8:64].any()
    assert flat[64:].tolist() == [7, 8, 9]


def test_arrays_that_are_not_in_c_order_keep_their_numbers() -> None:
    arrays = {"t": np.arange(6.0).reshape(2, 3).T, "s": np.arange(8)[::2]}
    back = unpack(arrived(pack(Content({"arrays": to_record(arrays)}))))
    found = to_arrays(back["arrays"])  # type: ignore[arg-type]
    assert found["t"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert found["s"].tolist() == [0, 2, 4, 6]


def test_what_arrives_is_looked_at_where_it_lies() -> None:
    packed = arrived(pack(Content({"arrays": to_record(two())})))
    record = packed["arrays"]
    assert isinstance(record, ArrayRecord)
    data = np.frombuffer(record[PACKED].data, np.uint8)
    for array in to_arrays(unpack(packed)["arrays"]).values():  # type: ignore[arg-type]
        assert np.shares_memory(array, data)
        assert not array.flags.writeable


def two() -> Arrays:
    return {"w": np.ones((2, 2), np.float32), "b": np.zeros(2, np.float32)}


@pytest.mark.parametrize("arrays", [{}, {PACKED: np.ones(3)}, {"w": np.ones(3)}])
def test_a_record_of_one_array_stays_as_it_is(arrays: Arrays) -> None:
    record = to_record(arrays)
    packed = pack(Content({"arrays": record}))
    assert list(packed) == ["arrays"]
    assert packed["arrays"] is record
    assert unpack(packed)["arrays"] is record


def test_a_record_that_messages_share_is_packed_once() -> None:
    shared, own = to_record(two()), [to_record(two()) for _ in range(2)]
    done: Packing = {}
    first, second = (
        pack(Content({"arrays": shared, "client-1.arrays": one}), done) for one in own
    )
    assert first["arrays"] is second["arrays"]
    assert first["client-1.arrays"] is not second["client-1.arrays"]


def test_a_layout_without_a_packed_record_is_a_record_like_others() -> None:
    content = Content(
        {"arrays.layout": ConfigRecord({"names": ["a"]}), "arrays": to_record(two())}
    )
    assert unpack(content) == content


def damaged(**changes: Any) -> Content:
    """Return packed content whose layout was changed; None removes an entry."""
    packed = arrived(pack(Content({"arrays": to_record(two())})))
    layout = dict(packed["arrays" + LAYOUT])  # type: ignore[call-overload]
    layout.update(changes)
    left = {key: value for key, value in layout.items() if value is not None}
    packed["arrays" + LAYOUT] = ConfigRecord(left)
    return packed


HUGE = "9" * 15
DAMAGE = {
    "no names": ({"names": None}, "no list of names"),
    "names are numbers": ({"names": [1, 2]}, "no list of names"),
    "a name is missing": ({"names": ["w"]}, "each array once"),
    "a name twice": ({"names": ["w", "w"]}, "each array once"),
    "shapes too few": ({"shapes": ["2,2"]}, "each array once"),
    "object": ({"dtypes": ["|O", "<f4"]}, "the dtype"),
    "complex": ({"dtypes": ["<c8", "<f4"]}, "the dtype"),
    "unknown dtype": ({"dtypes": ["<f3", "<f4"]}, "the dtype"),
    "void": ({"dtypes": ["|V4", "<f4"]}, "the dtype"),
    "negative": ({"shapes": ["-2,2", "2"]}, "the shape"),
    "no number": ({"shapes": ["2,", "2"]}, "the shape"),
    "33 axes": ({"shapes": [",".join("1" * 33), "2"]}, "the shape"),
    "huge": ({"shapes": [",".join([HUGE] * 3), "2"]}, "bytes or more"),
    "too large": ({"shapes": ["2,2", "3"]}, "bytes or more, not 72"),
    "too small": ({"shapes": ["2,2", "1"]}, "of 68 bytes, not 72"),
    "of another width": ({"dtypes": ["<f4", "<f8"]}, "bytes or more"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_layout_is_told_in_one_line(case: str) -> None:
    changes, told = DAMAGE[case]
    with pytest.raises(RecordError, match=told) as caught:
        unpack(damaged(**changes))
    assert "\n" not in str(caught.value)
    entry = unpack_reply(damaged(**changes))
    assert told in failure_of(entry, hosted=False)[0]


def test_a_layout_names_no_more_arrays_than_any_model_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "_MOST_ARRAYS", 2)
    assert list(unpack(damaged())["arrays"]) == ["w", "b"]
    monkeypatch.setattr(packed, "_MOST_ARRAYS", 1)
    with pytest.raises(RecordError, match="each array once"):
        unpack(damaged())


@pytest.mark.parametrize(
    "array", [np.ones(72, np.float32), np.ones((2, 36), np.uint8)], ids=["wide", "flat"]
)
def test_packed_bytes_are_bytes_in_a_row(array: NDArray[Any]) -> None:
    packed = damaged()
    packed["arrays"] = wired(to_record({PACKED: array}))
    with pytest.raises(RecordError, match="not a row of bytes"):
        unpack(packed)


@given(
    names=st.lists(st.text(max_size=3), max_size=4),
    dtypes=st.lists(st.text("<>|=biufcOV1248", max_size=4), max_size=4),
    shapes=st.lists(st.text("0123456789,-", max_size=9), max_size=4),
    size=st.integers(0, 300),
)
def test_any_layout_is_unpacked_or_refused(
    names: list[str], dtypes: list[str], shapes: list[str], size: int
) -> None:
    layout = ConfigRecord({"names": names, "dtypes": dtypes, "shapes": shapes})
    record = wired(to_record({PACKED: np.zeros(size, np.uint8)}))
    try:
        back = unpack(Content({"arrays": record, "arrays.layout": layout}))
    except RecordError:
        return
    found = to_arrays(back["arrays"])  # type: ignore[arg-type]
    assert list(found) == names
    assert sum(math.prod(a.shape) * a.itemsize for a in found.values()) <= size


def test_of_a_damaged_reply_only_its_client_suffers() -> None:
    good = arrived(pack(Content({"client-1.arrays": to_record(two())})))
    bad = damaged(shapes=["2,2", "1"])
    content = Content(dict(good))
    content["client-2.arrays"] = bad["arrays"]
    content["client-2.arrays" + LAYOUT] = bad["arrays" + LAYOUT]
    content["client-2.metrics"] = MetricRecord({"num-examples": 1})
    entries = unpack_reply(content)
    assert set(entries) == {"client-1.arrays", "client-2.error", "client-2.metrics"}
    assert list(entries["client-1.arrays"]) == ["w", "b"]


def answered(content: Content) -> Message:
    """Return what a client behind the mod answers: its arrays plus 1."""
    seen: list[list[str]] = []

    def client(message: Message, context: Context) -> Message:
        record = message.content["arrays"]
        assert isinstance(record, ArrayRecord)
        seen.append(list(record))
        assert LAYOUT not in "".join(message.content)
        arrays = {name: array + 1 for name, array in to_arrays(record).items()}
        return Message(Content({"arrays": to_record(arrays)}), reply_to=message)

    with flower_identity():
        message = Message(content, 1000, "train")
        message.metadata.__dict__["_message_id"] = "1"
        reply = packing_mod(message, node_context(1000, 1, {}), client)
    assert seen == [["w", "b"]]
    return reply


def test_the_mod_answers_packed_where_it_was_asked_packed() -> None:
    reply = answered(arrived(pack(Content({"arrays": to_record(two())}))))
    assert list(reply.content["arrays"]) == [PACKED]
    back = to_arrays(unpack(arrived(reply.content))["arrays"])  # type: ignore[arg-type]
    assert back["w"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert back["b"].tolist() == [1.0, 1.0]


def test_the_mod_leaves_others_alone() -> None:
    reply = answered(Content({"arrays": to_record(two())}))
    assert list(reply.content) == ["arrays"]
    assert list(reply.content["arrays"]) == ["w", "b"]
    assert isinstance(reply.content["arrays"]["w"], LazyArray)
