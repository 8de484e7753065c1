"""Records: what travels, and what is refused before anything is allocated."""

import pickle
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsuite.messages.array_records import (
    LazyArray,
    RecordError,
    array_header,
    num_bytes,
    to_arrays,
    to_record,
    view_array,
)
from fedsuite.messages.records import (
    Reply,
    Request,
    add_entry,
    pack_reply,
    records_of,
    split_replies,
    unpack_requests,
)

DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint8", "bool")

any_array = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


def assert_same(found: np.ndarray, given: np.ndarray) -> None:
    assert found.dtype == given.dtype
    assert found.shape == given.shape
    assert found.tobytes() == given.tobytes()


@given(any_array)
def test_array_crosses_a_wire_unchanged(array: np.ndarray) -> None:
    """0-d arrays included: the counters of batch normalisation are."""
    content = RecordDict({"arrays": to_record({"a": array})})
    arrived = recorddict_from_proto(recorddict_to_proto(content))
    assert type(arrived["arrays"]["a"]) is Array
    assert array_header(arrived["arrays"]["a"]) == (array.shape, array.dtype)
    assert_same(to_arrays(arrived["arrays"])["a"], array)


@given(any_array)
def test_array_crosses_a_process_boundary_as_flowers_own(array: np.ndarray) -> None:
    arrived = pickle.loads(pickle.dumps(LazyArray(array)))  # noqa: S301
    assert type(arrived) is Array
    assert_same(view_array(arrived), array)
    assert_same(arrived.numpy(), array)


ORDERS = {
    "columns": np.asfortranarray,
    "transposed": lambda array: array.transpose().copy().transpose(),
    "swapped": lambda array: np.swapaxes(np.swapaxes(array, 0, -1).copy(), 0, -1),
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "backwards": lambda array: array[::-1].copy()[::-1],
}


@pytest.mark.parametrize("order", ORDERS)
@given(any_array.filter(lambda array: array.ndim > 0))
def test_array_in_any_memory_order_arrives_in_c_order(
    order: str, array: np.ndarray
) -> None:
    given = ORDERS[order](array)
    for sent in (Array(given), LazyArray(given), Array(LazyArray(given).numpy())):
        seen = view_array(sent)
        assert array_header(sent) == (array.shape, array.dtype)
        assert_same(seen, array)
        assert seen.flags.c_contiguous
        assert not seen.flags.writeable
        assert sent.numpy().tobytes() == array.tobytes()
        wired = Array("", (), "numpy.ndarray", sent.data)
        assert view_array(wired).tobytes() == array.tobytes()


def test_columns_cost_one_copy() -> None:
    array = Array(np.asfortranarray(np.ones((500, 1000))))
    tracemalloc.start()
    view_array(array)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * 500 * 1000 * 8


def test_in_one_process_the_array_itself_is_handed_over() -> None:
    array = np.ones(3, dtype=np.float32)
    seen = to_arrays(to_record({"a": array}))["a"]
    assert seen.base is array
    assert not seen.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 2.0
    assert array.flags.writeable, "the caller's own array stays as it was"
    copy = to_record({"a": array})["a"].numpy()
    copy[0] = 5.0
    assert array[0] == 1.0


def test_received_array_is_read_only() -> None:
    seen = view_array(Array(np.ones(3)))
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 2.0


def test_flowers_view_of_our_array() -> None:
    """What Flower's own strategies and mods use of an Array."""
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    record = to_record({"a": array})
    assert list(record.keys()) == ["a"]
    assert record["a"].shape == (2, 3)
    assert record["a"].dtype == "int64"
    assert record["a"].data == Array(array).data
    assert record.count_bytes() == ArrayRecord({"a": Array(array)}).count_bytes()
    assert_same(record.to_numpy_ndarrays()[0], array)
    assert record.to_torch_state_dict()["a"].tolist() == array.tolist()


def header(shape: str, descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("shape", ["(10**12,)", "(1000000000000,)", "(1000000, 1000000)"])
def test_a_header_that_claims_much_allocates_nothing(shape: str) -> None:
    array = Array("float64", (10**12,), "numpy.ndarray", header(shape))
    tracemalloc.start()
    with pytest.raises(RecordError):
        view_array(array)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_what_the_array_says_of_itself_is_not_believed() -> None:
    """Only the header of the bytes counts: Flower sends shape and dtype beside it."""
    honest = Array(np.ones((2, 2), dtype=np.float32))
    lying = Array("int64", (3, 3), "numpy.ndarray", honest.data)
    assert array_header(lying) == ((2, 2), np.dtype("float32"))


@given(st.binary(max_size=120))
def test_bytes_of_anything_decode_or_raise_one_error(junk: bytes) -> None:
    whole = Array(np.arange(4.0)).data
    for data in (junk, whole[:8] + junk, whole[:10] + junk + whole[10 + len(junk) :]):
        try:
            view_array(Array("float64", (4,), "numpy.ndarray", data))
        except RecordError as error:
            assert len(str(error)) < 300


@given(st.integers(0, 127), st.integers(0, 255))
def test_any_byte_of_the_header_may_be_flipped(position: int, value: int) -> None:
    data = bytearray(Array(np.arange(4.0)).data)
    data[position] = value
    array = Array("float64", (4,), "numpy.ndarray", bytes(data))
    try:
        found = view_array(array)
    except RecordError:
        return
    assert found.nbytes == 32


def test_num_bytes() -> None:
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.int64)}
    assert num_bytes(arrays) == 6 * 4 + 8


def test_kinds_of_records() -> None:
    config, arrays = ConfigRecord({"a": 1}), ArrayRecord()
    content = RecordDict({"c": config, "x": arrays})
    assert records_of(content, ConfigRecord) == {"c": config}
    assert list(records_of(content, ArrayRecord)) == ["x"]


# Requests


def request_content(**config: object) -> RecordDict:
    model = {"w": np.ones(2, dtype=np.float32)}
    content = RecordDict({"arrays": to_record(model)})
    content["config"] = ConfigRecord({"server-round": 4, **config})  # type: ignore[dict-item]
    return content


def test_single_request() -> None:
    [request], hosted = unpack_requests(request_content(), "train", "4.1", 7)
    assert not hosted
    assert (request.client_id, request.server_round, request.new_version) == (7, 4, "4.1")
    assert (request.start_version, request.keep_version) == ("", "")
    assert request.arrays["arrays"]["w"].tolist() == [1.0, 1.0]
    assert not request.arrays["arrays"]["w"].flags.writeable


def test_hosted_requests_share_what_is_shared_and_keep_their_own() -> None:
    content = request_content(
        **{
            "client-ids": [1, 11],
            "start-versions": ["3.1", ""],
            "keep-versions": ["", "2.1"],
        }
    )
    content["client-1.control"] = to_record({"c": np.zeros(1)})
    content["client-11.control"] = to_record({"c": np.ones(1)})
    (first, second), hosted = unpack_requests(content, "train", "4.2", 0)
    assert hosted
    assert (first.client_id, second.client_id) == (1, 11)
    assert (first.start_version, second.start_version) == ("3.1", "")
    assert (first.keep_version, second.keep_version) == ("", "2.1")
    assert first.arrays["arrays"]["w"] is second.arrays["arrays"]["w"]
    assert first.arrays["control"]["c"][0] == 0.0
    assert second.arrays["control"]["c"][0] == 1.0
    assert set(first.config) == {"server-round"}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"client-ids": "1,2"}, "not a list of client numbers"),
        ({"client-ids": [1.5]}, "not a list of client numbers"),
        ({"client-ids": [1, 2], "start-versions": ["1.1"]}, "not as many versions"),
        ({"client-ids": [1], "keep-versions": "1.1"}, "not as many versions"),
    ],
)
def test_request_that_makes_no_sense(config: dict[str, object], reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        unpack_requests(request_content(**config), "train", "1.1", 0)


def test_config_of_another_name_is_found_if_it_is_the_only_one() -> None:
    content = RecordDict({"settings": ConfigRecord({"server-round": 9})})
    [request], _ = unpack_requests(content, "evaluate", "", 0)
    assert request.server_round == 9
    content["others"] = ConfigRecord({"server-round": 8})
    [request], _ = unpack_requests(content, "evaluate", "", 0)
    assert request.config == {}


def test_round_is_1_where_the_server_does_not_say() -> None:
    assert Request("train", 0).server_round == 1
    assert Request("train", 0, config={"server-round": "3"}).server_round == 1


# Replies


def test_replies_of_a_node_are_sorted_by_client() -> None:
    def reply(value: int) -> Reply:
        return Reply({"arrays": {"w": np.full(1, value)}}, {"num-examples": value})

    content = RecordDict()
    add_entry(content, 1, reply(1))
    add_entry(content, 11, reply(11))
    add_entry(content, 2, "ValueError: no data", "ValueError")
    entries = split_replies(content, [1, 2, 3, 11])
    assert list(entries) == [1, 2, 11]
    for client in (1, 11):
        assert set(entries[client]) == {"arrays", "metrics"}
        assert entries[client]["metrics"]["num-examples"] == client
        assert to_arrays(entries[client]["arrays"])["w"].tolist() == [client]
    failure = {"reason": "ValueError: no data", "error": "ValueError"}
    assert dict(entries[2]["error"]) == failure
    assert list(split_replies(content, [11])) == [11]


def test_a_reply_that_cannot_be_packed_leaves_nothing() -> None:
    content = RecordDict()
    with pytest.raises(TypeError):
        add_entry(content, 1, Reply({"arrays": {"w": np.zeros(1)}}, {"loss": "high"}))  # type: ignore[dict-item]
    assert not content


def test_single_reply() -> None:
    content = pack_reply(Reply({"arrays": {"w": np.zeros(1)}}, {"num-examples": 3}))
    assert set(content) == {"arrays", "metrics"}
    assert dict(content["metrics"]) == {"num-examples": 3}
