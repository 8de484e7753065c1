"""The guard: what unbelievable replies count for, and that honest ones pass untouched."""

from dataclasses import replace
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
    EVALUATE,
)
from fedsuite.rounds.average import capped_shares
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.guard import (
    BELIEVED,
    BELIEVED_COUNT,
    GROWTH,
    REMEMBERED,
    Guard,
    Limit,
    Remembered,
)
from fedsuite.rounds.validation import BadReply, ClientReply, Expected, check_reply, spec_of
from fedsuite.strategies.averaging.fedavg import FedAvg
from tests.helpers import TamperingGrid, matrix_app, run

SENT = {"w": np.zeros(2, np.float32)}
EXCHANGE = Exchange("train", range(5), shared={ARRAYS: SENT})


def reply(client_id: int, examples: float = 10.0, w: Any = (1.0, 0.0), **more: Any):
    arrays = {ARRAYS: {"w": np.array(w, np.float32)}, **more.pop("arrays", {})}
    return ClientReply(client_id, arrays, more, examples)


def passed(
    guard: Guard, replies: list[ClientReply]
) -> tuple[list[ClientReply], list[int | None]]:
    named: list[int | None] = []
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
        {"w": (1.01 * BELIEVED, 0.0)},
    ],
)
def test_a_liar_counts_as_the_median_and_is_named(liar: int, lie: dict[str, Any]) -> None:
    others = [reply(k, 10.0, (1.0, 0.0)) for k in range(5) if k != liar]
    replies = sorted([*others, reply(liar, **lie)], key=lambda r: r.client_id)
    found, named = passed(Guard(), replies)
    assert named == [liar]
    assert found[liar].num_examples == 10.0
    assert found[liar].claimed_examples == lie.get("examples")
    assert np.linalg.norm(found[liar].arrays[ARRAYS]["w"]) == pytest.approx(1.0)
    assert all(found[r.client_id] is r for r in others)


def test_honest_replies_are_the_same_objects() -> None:
    found, named = passed(Guard(), HONEST)
    assert named == [] and all(a is b for a, b in zip(found, HONEST, strict=True))


def test_medians_and_numbers_by_hand() -> None:
    """Counts 1, 2, 3, 100 have the lower median 2."""
    replies = [reply(k, n) for k, n in enumerate((1.0, 2.0, 3.0, 100.0))]
    found, _ = passed(Guard(max_examples=Limit.parse("", "median x 3", 1.0)), replies)
    assert [r.num_examples for r in found] == [1, 2, 3, 6]
    found, _ = passed(Guard(max_update_norm=Limit.parse("", 0.5, 1.0)), replies[:1])
    np.testing.assert_allclose(found[0].arrays[ARRAYS]["w"], [0.5, 0.0])


def test_control_changes_are_bounded_and_memory_is_restored() -> None:
    changes = [{CONTROL_CHANGE: {"w": np.array([v, 0.0])}} for v in (1.0, 1.0, 1.0, 1e9)]
    guard = Guard()
    found, named = passed(guard, [reply(k, arrays=a) for k, a in enumerate(changes)])
    assert named == [3] and found[3].arrays[CONTROL_CHANGE]["w"][0] == pytest.approx(1.0)
    guard.counted()
    other = Guard()
    other.restore(guard.state())
    medians = {"arrays of 1": [1.0], f"{CONTROL_CHANGE} of 1": [1.0]}
    assert other.state() == guard.state() == {"medians": medians, "few": {}}


def test_lengths_of_a_round_that_did_not_count_are_forgotten() -> None:
    """A server that is killed between the two rounds knows them no more either."""
    guard = Guard()
    passed(guard, [reply(k, w=(5.0, 0.0)) for k in range(5)])
    guard.begin()
    passed(guard, [reply(k) for k in range(4)])
    guard.counted()
    assert guard.remembered.usual("arrays of 1") == 1.0
    guard.open(replace(EXCHANGE, message_type=EVALUATE))
    assert [*guard.reply(reply(0)), *guard.rest()]
    assert guard.state()["few"] == {"arrays of 1": [1.0]}


def test_a_late_learner_is_no_liar() -> None:
    """Its update is a thousand medians of this round, and as long as the first round's."""
    guard = Guard()
    passed(guard, [reply(k) for k in range(4)])
    guard.counted()
    _, named = passed(guard, [*(reply(k, w=(1e-3, 0)) for k in range(3)), reply(3)])
    assert named == []


def test_a_length_that_is_just_believed_is_untouched() -> None:
    believed = reply(4, w=(0.99 * BELIEVED, 0.0))
    found, named = passed(Guard(), [*(reply(k) for k in range(4)), believed])
    assert named == [] and found[-1] is believed


def test_every_record_of_a_reply_is_bounded() -> None:
    """Not a list of names: what a method asks for tomorrow is bounded too."""
    tables = [{"table": {"t": np.full(3, v)}} for v in (1.0, 1.0, 1.0, 1e30)]
    found, named = passed(Guard(), [reply(k, arrays=a) for k, a in enumerate(tables)])
    assert named == [3]
    np.testing.assert_allclose(found[3].arrays["table"]["t"], 1.0)


def test_what_is_remembered_is_no_ratchet() -> None:
    """Two of three lie more each round: the bound grows GROWTH times a round, and sinks."""
    guard = Guard()
    for round_number in range(6):
        lie = (20.0**round_number, 0.0)
        passed(guard, [reply(0), reply(1, w=lie), reply(2, w=lie)])
        guard.counted()
    assert guard.remembered.usual("arrays of 1") <= GROWTH**3
    for _ in range(REMEMBERED):
        passed(guard, HONEST)
        guard.counted()
    assert guard.remembered.usual("arrays of 1") == 2.0


@given(st.lists(st.floats(1e-3, 1e30), min_size=1, max_size=40))
def test_a_round_raises_what_is_remembered_at_most_so_much(medians: list[float]) -> None:
    remembered = Remembered({})
    for median in medians:
        before = remembered.usual("kind")
        remembered.add("kind", [median] * 3)
        assert remembered.usual("kind") <= max(before, median)
        kept = remembered.state()["medians"]["kind"]
        assert len(kept) <= REMEMBERED and kept[-1] <= GROWTH * before


def test_rounds_of_few_replies_are_remembered_together() -> None:
    """As of clients whose replies come one by one."""
    guard = Guard()
    for length in (1.0, 3.0, 2.0):
        assert guard.remembered.usual("arrays of 1") == np.inf
        # A restart forgets none of them.
        state, guard = guard.state(), Guard()
        guard.restore(state)
        passed(guard, [reply(0, w=(length, 0.0))])
        guard.counted()
    assert guard.remembered.usual("arrays of 1") == 2.0
    assert passed(guard, [reply(1, w=(2.02 * BELIEVED, 0.0))])[1] == [1]


def test_whom_the_model_makes_long_is_bounded_and_not_named() -> None:
    """All are far beyond the round before; a liar is far beyond them too."""
    guard = Guard()
    passed(guard, [reply(k) for k in range(4)])
    guard.counted()
    honest = [reply(k, w=(length, 0)) for k, length in enumerate((15.0, 25.0, 30.0, 30.0))]
    bounded, named = passed(guard, [*honest, reply(4, w=(1e3, 0))])
    assert named == [None, None, None, 4]
    lengths = [float(r.arrays[ARRAYS]["w"][0]) for r in bounded]
    np.testing.assert_allclose(lengths, [15, *[GROWTH] * 4], rtol=1e-6)


def test_a_round_that_does_not_count_is_not_remembered() -> None:
    guard = Guard()
    passed(guard, HONEST)
    assert guard.state() == {"medians": {}, "few": {}}


def test_what_was_said_before_a_way_back_is_not_remembered() -> None:
    guard = Guard()
    before = guard.state()
    passed(guard, HONEST)
    guard.restore(before)
    guard.counted()
    assert guard.state() == before


@pytest.mark.parametrize("ratio", [0.99, 1.01])
def test_two_replies_are_compared_with_earlier_rounds(ratio: float) -> None:
    guard = Guard()
    passed(guard, [reply(k) for k in range(3)])
    guard.counted()
    _, named = passed(guard, [reply(0), reply(1, w=(ratio * BELIEVED, 0.0))])
    assert named == ([] if ratio < 1 else [1])


def test_two_replies_of_a_first_round_are_compared_with_the_model() -> None:
    found, named = passed(Guard(), [reply(0), reply(1, w=(1e30, 0.0))])
    assert named == [1] and found[1].arrays[ARRAYS]["w"][0] == pytest.approx(1.0)


def test_of_several_models_to_choose_from_all_lengths_are_compared() -> None:
    """One client alone chose the second model: it is compared with who chose the first."""
    other = "model-1"
    specs = {name: spec_of(SENT) for name in (ARRAYS, other)}
    exchange = Exchange(
        "train",
        range(5),
        {ARRAYS: SENT, other: SENT},
        expected=Expected(specs, one_of=True),
    )
    alone = ClientReply(4, {other: {"w": np.array((1e6, 0.0), np.float32)}}, {}, 10.0)
    guard, named = Guard(), []
    guard.tell = lambda client_id, change: named.append(client_id)
    guard.open(exchange)
    for one in (*(reply(k) for k in range(4)), alone):
        assert not list(guard.reply(one))
    bounded = list(guard.rest())[-1].arrays[other]["w"]
    assert named == [4] and bounded[0] == pytest.approx(1.0)


def test_a_part_of_a_model_is_compared_with_such_parts() -> None:
    """Nine rounds send one array of two; the tenth sends both, and the long one is new."""
    guard, named = Guard(), []
    guard.tell = lambda client_id, change: named.append(client_id)
    whole = {"w": np.zeros(1), "slow": np.zeros(1)}
    for slow in (*[0.0] * 9, 500.0):
        sent = whole if slow else {"w": np.zeros(1)}
        guard.open(Exchange("train", range(3), {ARRAYS: sent}))
        moved = {name: np.array([slow if name == "slow" else 1.0]) for name in sent}
        for client_id in range(3):
            list(guard.reply(ClientReply(client_id, {ARRAYS: moved}, {}, 1.0)))
        list(guard.rest())
        guard.counted()
    assert named == []


def test_a_strategy_remembers_the_lengths_of_rounds_that_count() -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    run(strategy, TamperingGrid(matrix_app(), 3), 2)
    assert len(strategy.guard.state()["medians"]["arrays of 1"]) == 2


SIZES = {0: 20, 1: 20, 2: 20, 3: 20, 4: 400}


def test_a_client_counts_for_no_more_rows_than_the_server_knows() -> None:
    guard = Guard(sizes=dict.fromkeys(range(5), 20))
    found, named = passed(guard, [*(reply(k, 20.0) for k in range(4)), reply(4, 21.0)])
    assert named == [4]
    assert [r.num_examples for r in found] == [20.0] * 5
    assert found[4].claimed_examples == 21.0


def test_no_client_has_more_rows_than_all_others_and_honest_ones_are_not_named() -> None:
    given = [reply(k, float(SIZES[k])) for k in range(5)]
    found, named = passed(Guard(sizes=SIZES), given)
    assert [r.num_examples for r in found] == [20.0] * 4 + [80.0] and named == []
    found, _ = passed(Guard(sizes=SIZES, largest_share=1.0), given)
    assert found[4] is given[4]
    off = Guard(sizes=SIZES, max_examples=Limit.parse("", "off", BELIEVED_COUNT))
    assert passed(off, given)[0][4] is given[4]


@pytest.mark.parametrize(("length", "named"), [(199.0, []), (201.0, [4])])
def test_who_has_more_rows_may_move_farther(length: float, named: list[int]) -> None:
    """It takes 20 times the steps of the median client."""
    given = [*(reply(k, 20.0) for k in range(4)), reply(4, 400.0, (length, 0.0))]
    guard = Guard(sizes=SIZES)
    assert passed(guard, given)[1] == named


def test_a_claim_is_compared_with_its_own_exchange() -> None:
    """Clients of the last round had 1,000 examples each, those of this one have 10."""
    guard = Guard()
    passed(guard, [reply(k, 1000.0) for k in range(4)])
    found, named = passed(guard, [*(reply(k) for k in range(3)), reply(3, 5000.0)])
    assert named == [3] and found[3].num_examples == 10.0


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


def test_capped_shares_by_hand() -> None:
    capped = capped_shares(np.array([5.0, 3.0, 1.0, 1.0]), 0.4)
    np.testing.assert_allclose(capped, [0.4, 0.36, 0.12, 0.12])
    np.testing.assert_array_equal(capped_shares(np.array([9.0, 1.0]), 0.1), [0.5, 0.5])
    some = capped_shares(np.array([9.0, 0.0, 1.0]), 0.1)
    np.testing.assert_array_equal(some, [0.5, 0.0, 0.5])
    own = capped_shares(np.array([5.0, 3.0, 1.0, 1.0]), np.array([0.4, 0.2, 1.0, 1.0]))
    np.testing.assert_allclose(own, [0.4, 0.2, 0.2, 0.2])
