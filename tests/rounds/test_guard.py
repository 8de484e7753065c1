"""The guard: what unbelievable replies count for, and that honest ones pass untouched."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    ARRAYS,
    CONTROL_CHANGE,
)
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.guard import BELIEVED_LOSS, Guard, Limit, median_of, within_ratio
from fedsuite.rounds.simplex import capped_shares
from fedsuite.rounds.validation import BadReply, ClientReply, Expected, check_reply, spec_of
from fedsuite.strategies.averaging.fedavg import FedAvg

SENT = {"w": np.zeros(2, np.float32)}
EXCHANGE = Exchange("train", range(5), shared={ARRAYS: SENT})


def reply(client_id: int, examples: float = 10.0, w: Any = (1.0, 0.0), **more: Any):
    arrays = {ARRAYS: {"w": np.array(w, np.float32)}, **more.pop("arrays", {})}
    return ClientReply(client_id, arrays, more, examples)


def passed(guard: Guard, replies: list[ClientReply]) -> tuple[list[ClientReply], list[int]]:
    named: list[int] = []
    guard.tell = lambda client_id, change: named.append(client_id)
    guard.open(EXCHANGE)
    found = [one for reply in replies for one in guard.reply(reply)]
    return [*found, *guard.rest()], named


HONEST = [reply(k, 10.0 + k, (1.0 + k, 0.0), loss=2.0) for k in range(4)]


@pytest.mark.parametrize("liar", range(5))
@pytest.mark.parametrize(
    "lie",
    [
        {"examples": 1e6},
        {"w": (1e38, -1e38)},
        {"w": (1e6, 1e6)},
        {"loss": 10.0},
        {"loss": 1e30},
    ],
)
def test_a_liar_counts_as_the_median_and_is_named(liar: int, lie: dict[str, Any]) -> None:
    others = [reply(k, 10.0, (1.0, 0.0), loss=2.0) for k in range(5) if k != liar]
    false = reply(liar, **{"loss": 2.0, **lie})
    guard = Guard(steered_by={"loss": BELIEVED_LOSS})
    replies = sorted([*others, false], key=lambda r: r.client_id)
    found, named = passed(guard, replies)
    assert named == [liar]
    assert found[liar].num_examples == 10.0
    assert found[liar].claimed_examples == lie.get("examples")
    assert found[liar].metrics["loss"] == 2.0
    assert np.linalg.norm(found[liar].arrays[ARRAYS]["w"]) == pytest.approx(1.0)
    assert all(found[r.client_id] is r for r in others)


def test_honest_replies_are_the_same_objects() -> None:
    found, named = passed(Guard(steered_by={"loss": BELIEVED_LOSS}), HONEST)
    assert named == [] and all(a is b for a, b in zip(found, HONEST, strict=True))


def test_medians_and_numbers_by_hand() -> None:
    """Counts 1, 2, 3, 100 have the lower median 2."""
    replies = [reply(k, n) for k, n in enumerate((1.0, 2.0, 3.0, 100.0))]
    found, _ = passed(Guard(max_examples=Limit.parse("", "median x 3")), replies)
    assert [r.num_examples for r in found] == [1, 2, 3, 6]
    found, _ = passed(Guard(max_update_norm=Limit.parse("", 0.5)), replies[:1])
    np.testing.assert_allclose(found[0].arrays[ARRAYS]["w"], [0.5, 0.0])


def test_control_changes_are_bounded_and_memory_is_restored() -> None:
    changes = [{CONTROL_CHANGE: {"w": np.array([v, 0.0])}} for v in (1.0, 1.0, 1.0, 1e9)]
    guard = Guard()
    found, named = passed(guard, [reply(k, arrays=a) for k, a in enumerate(changes)])
    assert named == [3] and found[3].arrays[CONTROL_CHANGE]["w"][0] == pytest.approx(1.0)
    other = Guard()
    other.restore(guard.state())
    assert other.largest_median == guard.largest_median


def test_a_late_learner_is_no_liar() -> None:
    """Its update is a thousand medians of this round, and as long as the first round's."""
    guard = Guard()
    passed(guard, [reply(k) for k in range(4)])
    _, named = passed(guard, [*(reply(k, w=(1e-3, 0)) for k in range(3)), reply(3)])
    assert named == []


def test_a_claim_is_compared_with_its_own_exchange() -> None:
    """Clients of the last round had 1,000 examples each, those of this one have 10."""
    guard = Guard()
    passed(guard, [reply(k, 1000.0) for k in range(4)])
    found, named = passed(guard, [*(reply(k) for k in range(3)), reply(3, 5000.0)])
    assert named == [3] and found[3].num_examples == 10.0


def test_few_replies_are_not_judged() -> None:
    assert median_of([1.0, 1e9]) == math.inf
    assert passed(Guard(), [reply(0), reply(1, 1e9)])[1] == []


def test_many_replies_stream() -> None:
    guard = Guard()
    guard.open(EXCHANGE)
    passed_on = [len(list(guard.reply(reply(k)))) for k in range(40)]
    assert passed_on == [0] * 8 + [1] * 32
    assert len(list(guard.rest())) == 8


@pytest.mark.parametrize("name", ["n.running_var", "n.num_batches_tracked"])
def test_impossible_statistics_are_refused(name: str) -> None:
    arrays = {name: np.array([-1], np.float32 if "var" in name else np.int64)}
    content = RecordDict(
        {"arrays": to_record(arrays), "metrics": MetricRecord({"num-examples": 1})}
    )
    with pytest.raises(BadReply, match="below 0"):
        check_reply(0, content, Expected({ARRAYS: spec_of(arrays)}))


@pytest.mark.parametrize("value", ["median x 0", "median", "3 medians", 0.0, float("nan")])
def test_wrong_limits_are_refused_in_one_line(value: Any) -> None:
    with pytest.raises(ValueError, match="max_update_norm = ") as caught:
        FedAvg(max_update_norm=value)
    assert "\n" not in str(caught.value)


@given(
    st.lists(st.floats(0, 1e300), min_size=1, max_size=9),
    st.floats(1e-3, 1e3),
    st.floats(1, 100),
)
def test_a_ratio_holds_at_any_temperature(losses: list[float], slope: float, ratio: float):
    bounded = within_ratio(np.array(losses), slope, ratio)
    median = np.sort(bounded)[(len(bounded) - 1) // 2]
    # The bound is added to a loss of any size.
    assert bounded.max() <= median + math.log(ratio) / slope * (1 + 1e-9) + 1e-9 * median


def test_a_ratio_by_hand() -> None:
    """At temperature 0.1 a loss of 10 gives twice the weight of a loss of 2: 2 / 6."""
    bounded = within_ratio(np.array([2.0, 2.0, 2.0, 2.0, 10.0]), 10.0, 2.0)
    weights = np.exp(10 * (bounded - 2))
    assert weights[-1] / weights.sum() == pytest.approx(2 / 6)


def test_capped_shares_by_hand() -> None:
    capped = capped_shares(np.array([5.0, 3.0, 1.0, 1.0]), 0.4)
    np.testing.assert_allclose(capped, [0.4, 0.36, 0.12, 0.12])
    np.testing.assert_array_equal(capped_shares(np.array([9.0, 1.0]), 0.1), [0.5, 0.5])
    some = capped_shares(np.array([9.0, 0.0, 1.0]), 0.1)
    np.testing.assert_array_equal(some, [0.5, 0.0, 0.5])
