"""Bad replies: dropped with client and reason, while the good ones count exactly."""

import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedsuite.messages.array_records import to_record
from tests.helpers import (
    LAYOUTS,
    MEAN_OF_ALL,
    MEAN_WITHOUT,
    Change,
    TamperingGrid,
    client_number,
    for_client,
    matrix_app,
    run,
    run_tampered,
    set_arrays,
    set_metrics,
    strategy_for,
)

GOOD = np.full((2, 2), 2.0, dtype=np.float32)


def array_of(data: bytes, **facts: object) -> Array:
    given = {"dtype": "float32", "shape": (2, 2), "stype": "numpy.ndarray"} | facts
    return Array(data=data, **given)


def saved(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def filled(value: float) -> np.ndarray:
    array = GOOD.copy()
    array[1, 0] = value
    return array


def drop_arrays(content: RecordDict, prefix: str) -> None:
    del content[f"{prefix}arrays"]


def drop_metrics(content: RecordDict, prefix: str) -> None:
    del content[f"{prefix}metrics"]


def add_record(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}more"] = ArrayRecord({"weight": Array(GOOD)})


CLAIM = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"
BAD: dict[str, tuple[Change, str]] = {
    "nan": (set_arrays(weight=filled(np.nan)), "array weight: holds NaN or infinity"),
    "inf": (set_arrays(weight=filled(np.inf)), "array weight: holds NaN or infinity"),
    "minus-inf": (set_arrays(weight=filled(-np.inf)), "holds NaN or infinity"),
    "broadcastable": (
        set_arrays(weight=GOOD[:1]),
        "array weight: shape (1, 2), expected (2, 2)",
    ),
    "larger": (
        set_arrays(weight=np.zeros((3, 3), np.float32)),
        "array weight: shape (3, 3), expected (2, 2)",
    ),
    "empty": (set_arrays(weight=GOOD[:0]), "shape (0, 2), expected (2, 2)"),
    "integers": (
        set_arrays(weight=GOOD.astype(np.int64)),
        "array weight: dtype int64, expected float32",
    ),
    "booleans": (set_arrays(weight=GOOD > 0), "dtype bool, expected float32"),
    "beyond-float32": (
        set_arrays(weight=np.full((2, 2), 1e300)),
        "array weight: holds NaN or infinity",
    ),
    "extra-array": (
        set_arrays(weight=GOOD, bias=GOOD),
        "array names differ: 0 missing [], 1 unexpected ['bias']",
    ),
    "other-name": (
        set_arrays(bias=GOOD),
        "array names differ: 1 missing ['weight'], 1 unexpected ['bias']",
    ),
    "no-arrays": (drop_arrays, "array record 'arrays' is missing (found: none)"),
    "extra-record": (add_record, "unexpected array record: more"),
    "no-metrics": (drop_metrics, "metric 'num-examples' is missing"),
    "no-examples-metric": (
        set_metrics(num_examples=None),
        "metric 'num-examples' is missing",
    ),
    "negative-examples": (set_metrics(num_examples=-4), "num-examples is -4: must be >= 0"),
    "nan-examples": (
        set_metrics(num_examples=float("nan")),
        "metric num-examples is nan",
    ),
    "inf-examples": (
        set_metrics(num_examples=float("inf")),
        "metric num-examples is inf",
    ),
    "uncountable-examples": (
        set_metrics(num_examples=1e300),
        "num-examples is 1e+300: no data set is that large",
    ),
    "integer-beyond-float": (set_metrics(num_examples=10**400), "metric num-examples"),
    "garbage": (set_arrays(weight=array_of(b"garbage!")), "not a NumPy array"),
    "torn": (set_arrays(weight=array_of(saved(GOOD)[:-1])), "does not fit its 143 bytes"),
    "too-long": (set_arrays(weight=array_of(saved(GOOD) + b"x")), "does not fit its 145"),
    "huge-claim": (
        set_arrays(weight=array_of(header(CLAIM))),
        "array of shape (1000000000000,) does not fit its",
    ),
    "negative-shape": (
        set_arrays(weight=array_of(header(CLAIM.replace("1000000000000,", "-1,-0")))),
        "does not fit its",
    ),
    "pickled": (
        set_arrays(weight=array_of(saved(np.array([{}, 1]), allow_pickle=True))),
        "array weight: dtype object is not allowed",
    ),
    "text": (
        set_arrays(weight=array_of(saved(np.array(["a"])))),
        "array weight: dtype <U1 is not allowed",
    ),
    "torn-columns": (
        set_arrays(weight=array_of(saved(np.asfortranarray(GOOD))[:-1])),
        "does not fit its 143 bytes",
    ),
    "other-format": (
        set_arrays(weight=array_of(saved(GOOD), stype="pickle")),
        "unknown array serialisation 'pickle'",
    ),
    "new-version": (
        set_arrays(weight=array_of(b"\x93NUMPY\x03\x00" + saved(GOOD)[8:])),
        "unknown format (3, 0)",
    ),
    "half-a-header": (set_arrays(weight=array_of(header("{'descr': ("))), "not a NumPy"),
    "header-of-nonsense": (set_arrays(weight=array_of(header("{[]: 1}"))), "not a NumPy"),
    "header-without-dtype": (
        set_arrays(
            weight=array_of(header("{'descr': (), 'fortran_order': False, 'shape': ()}"))
        ),
        "not a NumPy",
    ),
    "header-of-minuses": (
        set_arrays(weight=array_of(header("-" * 9000 + "1"))),
        "not a NumPy",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BAD)
def test_bad_reply_is_dropped_and_the_run_goes_on(name: str, layout: str) -> None:
    change, reason = BAD[name]
    trace = run_tampered(layout, for_client(1, layout, change))
    [rejection] = trace.reports[0].train.rejections
    assert rejection.client_id == client_number(layout, 1)
    assert rejection.server_round == 1
    assert reason in rejection.reason
    assert "\n" not in rejection.reason
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]
    assert [row["client"] for row in trace.reports[0].train.rows] == [
        client_number(layout, 0),
        client_number(layout, 2),
    ]
    assert not trace.reports[1].train.rejections
    assert trace.reports[0].metrics["replies_rejected"] == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("client", [0, 2])
def test_the_first_and_the_last_client_may_fail_too(client: int, layout: str) -> None:
    change = set_arrays(weight=filled(np.nan))
    trace = run_tampered(layout, for_client(client, layout, change))
    expected = [np.float32(MEAN_WITHOUT[client]), MEAN_OF_ALL]
    assert trace.weights == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_reply_is_touched_where_nothing_is_wrong(layout: str) -> None:
    trace = run_tampered(layout, None)
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]
    assert not trace.reports[0].train.rejections


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zero_examples_of_one_client_count_nothing_but_are_recorded(layout: str) -> None:
    change = set_metrics(num_examples=0)
    trace = run_tampered(layout, for_client(1, layout, change))
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]
    assert not trace.reports[0].train.rejections
    assert [row["num_examples"] for row in trace.reports[0].train.rows] == [1, 0, 1]


def test_zero_examples_of_all_keep_the_model_and_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        for reply in replies:
            set_metrics(num_examples=0)(reply.content, "")
        return replies

    trace = run_tampered("single", tamper)
    assert trace.weights == [0.0, MEAN_OF_ALL]
    assert "no client has examples" in caplog.text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_huge_number_of_examples_owns_the_model_unless_capped(
    layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    tamper = for_client(1, layout, set_metrics(num_examples=1e15))
    trace = run_tampered(layout, tamper, max_examples="off")
    assert trace.weights[0] == pytest.approx(2.0, abs=1e-6)
    assert "counts as" not in caplog.text
    # (1 * 1 + 3 * 2 + 1 * 4) / (1 + 3 + 1)
    trace = run_tampered(layout, tamper, max_examples=3)
    assert trace.weights[0] == pytest.approx(11 / 5)
    number = client_number(layout, 1)
    assert f"client {number}: num-examples 1e+15 counts as 3" in caplog.text


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_mean_that_is_not_finite_keeps_the_model() -> None:
    """Each reply is finite, but their weighted sum is beyond float64."""
    large = set_arrays(weight=np.full((2, 2), 1.7e308))

    def tamper(replies: list[Message]) -> list[Message]:
        for reply in replies:
            large(reply.content, "")
        return replies

    initial = to_record({"weight": np.zeros((2, 2))})
    grid = TamperingGrid(matrix_app(), 3, tamper)
    trace = run(strategy_for("single"), grid, 1, initial)
    assert trace.weights == [0.0]
    assert "NaN or infinity" in trace.reports[0].train.rejections[-1].reason
