"""Too few good replies: the model stays, and the run ends when it goes on like that."""

import pytest
from flwr.app import Message

from fedsuite.core.errors import RunError
from fedsuite.messages.records import Arrays
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.quorum import Quorum, QuorumMissed
from fedsuite.strategies.averaging.fedavg import FedAvg
from tests.helpers import (
    MEAN_OF_ALL,
    Tamper,
    TamperingGrid,
    Trace,
    matrix_app,
    run,
    run_tampered,
    set_metrics,
    strategy_for,
    zeros,
)


def keep(count: int) -> Tamper:
    return lambda replies: replies[:count]


@pytest.mark.parametrize(("good", "model"), [(1, 0.0), (2, 5 / 3), (3, MEAN_OF_ALL)])
def test_quorum_of_two(good: int, model: float) -> None:
    trace = run_tampered("single", keep(good), num_rounds=1, quorum=2)
    assert trace.weights == [pytest.approx(model)]


def test_missed_quorum_reports_no_metrics_but_keeps_the_rows() -> None:
    trace = run_tampered("single", keep(1), num_rounds=1, quorum=2)
    assert trace.result is not None
    assert trace.result.train_metrics_clientapp == {}
    assert len(trace.reports[0].train.rows) == 1
    assert len(trace.reports[0].train.rejections) == 2


def bad_replies(replies: list[Message]) -> list[Message]:
    for reply in replies:
        set_metrics(num_examples=-1)(reply.content, "")
    return replies


def run_bad_rounds(rounds: list[int], num_rounds: int, max_failed_rounds: int) -> Trace:
    grid = TamperingGrid(matrix_app(), 3, bad_replies, rounds)
    strategy = strategy_for("single", max_failed_rounds=max_failed_rounds)
    return run(strategy, grid, num_rounds)


def test_run_ends_with_the_last_reason_after_too_many_failed_rounds() -> None:
    reason = (
        r"round 3: 2 rounds in a row had fewer good replies than the quorum of 1; "
        r"last reason: num-examples is -1: must be >= 0"
    )
    with pytest.raises(RunError, match=reason) as caught:
        run_bad_rounds([2, 3], 9, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("refused", "end"),
    [
        ("client 2 lost its state", "; last refused reply: client 2 lost its state"),
        ("", ""),
        ("vectors of 1 clients", ""),
    ],
)
def test_a_number_of_replies_stands_beside_why_one_was_refused(
    refused: str, end: str
) -> None:
    missed = QuorumMissed(Kind.TOO_FEW, 1, "vectors of 1 clients", "the 3 for a sum")
    with pytest.raises(RunError) as caught:
        Quorum().miss(4, missed, refused)
    assert str(caught.value) == (
        "round 4: 1 rounds in a row had fewer good replies than the 3 for a sum; last "
        f"reason: vectors of 1 clients{end}"
    )


def test_a_rule_with_too_few_models_says_why_there_are_no_more() -> None:
    def but_one(replies: list[Message]) -> list[Message]:
        return [*replies[:1], *bad_replies(replies[1:])]

    grid = TamperingGrid(matrix_app(), 3, but_one, [1])
    strategy = strategy_for("single", max_failed_rounds=1, aggregator="multi-krum")
    with pytest.raises(RunError, match=r"krum.*; last refused reply: num-examples"):
        run(strategy, grid, 9)


def test_a_good_round_in_between_starts_the_count_anew() -> None:
    trace = run_bad_rounds([1, 3, 5], 6, 2)
    assert trace.weights == [0.0] + [MEAN_OF_ALL] * 5


class Summing(FedAvg):
    """Has sums of its own, and says nothing of the average's."""

    def begin_aggregation(self, arrays: Arrays) -> None:
        self.count = 0


def test_replies_of_a_failed_round_are_in_no_later_average() -> None:
    strategy = Summing(min_available_nodes=3, quorum=3, fraction_evaluate=0.0)
    trace = run(strategy, TamperingGrid(matrix_app(), 3, keep(2), [1]), 2)
    assert trace.weights == [0.0, MEAN_OF_ALL]


def test_callbacks_hear_of_the_end_and_see_the_kept_model() -> None:
    trace = Trace()
    strategy = strategy_for("single", max_failed_rounds=1)
    grid = TamperingGrid(matrix_app(), 3, bad_replies, [2])
    with pytest.raises(RunError):
        run(strategy, grid, 9, zeros(), [trace])
    assert isinstance(trace.error, RunError)
    assert trace.weights == [MEAN_OF_ALL]
