"""Who is asked: each way by hand, uniform as ever, and bounds on what claims can do."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.rng import numpy_stream
from fedsuite.rounds.round_settings import Way
from fedsuite.rounds.selection import Selection, drawn, largest, utility, within_share
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies import FedAvg
from tests.helpers import (
    TamperingGrid,
    Trace,
    digits_experiment,
    final_bits,
    matrix_app,
    play,
    run,
    run_digits,
    set_metrics,
)

WAYS: tuple[Way, ...] = ("by-examples", "power-of-choice", "oort", "round-robin")


def select(way: Way, sizes: Sequence[float] = (), **options: Any) -> Selection:
    given = {"candidates": 4, "ratio": 2.0, "clock": None, **options}
    return Selection(way, 0, sizes=lambda: dict(enumerate(sizes)), **given)


def hear(selection: Selection, losses: dict[int, float], examples: float = 10.0) -> None:
    for client_id, loss in losses.items():
        list(selection.reply(ClientReply(client_id, {}, {"loss": loss}, examples)))


def asked_over(selection: Selection, rounds: int, clients: int, count: int) -> Counter[int]:
    total: Counter[int] = Counter()
    for server_round in range(1, rounds + 1):
        chosen = selection.draw(range(clients), count, server_round, clients)
        assert chosen == sorted(set(chosen)) and len(chosen) == count
        total.update(chosen)
        hear(selection, {k: 1.0 + k for k in chosen})
    return total


def test_uniform_draws_as_ever() -> None:
    values = {"clients_per_round": 2, "num_rounds": 3}
    assert final_bits(selection="uniform", **values) == final_bits(**values)
    clients = [row["client"] for row in _rows(play(**values))]
    # Drawn before there was another way.
    assert clients == _uniform(4, 2, 3)


def _uniform(clients: int, count: int, rounds: int) -> list[int]:
    chosen: list[int] = []
    for server_round in range(1, rounds + 1):
        stream = numpy_stream(0, "sample-train", server_round)
        chosen += sorted(stream.choice(clients, size=count, replace=False).tolist())
    return chosen


def _rows(trace: Trace) -> list[dict[str, Any]]:
    return [row for report in trace.reports if report.train for row in report.train.rows]


@pytest.mark.parametrize(
    ("way", "chosen"),
    [
        # Of all four, those with the largest losses.
        ("power-of-choice", [1, 3]),
        # The 20 % that explore have nobody new: 10 x 8 and 10 x 6 are worth most.
        ("oort", [1, 3]),
        # Client 0 and 2 were asked once, the others twice.
        ("round-robin", [0, 2]),
    ],
)
def test_who_is_asked_by_hand(way: Way, chosen: list[int]) -> None:
    selection = select(way, ratio=math.inf)
    hear(selection, {0: 1.0, 1: 8.0, 2: 2.0, 3: 6.0})
    selection.asked = {0: 1, 1: 2, 2: 1, 3: 2}
    assert selection.draw(range(4), 2, 9, 4) == chosen


def test_who_never_trained_comes_first() -> None:
    selection = select("power-of-choice", ratio=math.inf)
    hear(selection, {0: 100.0, 1: 200.0})
    assert selection.draw(range(4), 2, 2, 4) == [2, 3]


def test_utility_by_hand() -> None:
    """10 rows of loss 0.5, twice as slow as preferred: a quarter of 5."""
    assert utility(10, 0.5) == 5.0
    assert utility(10, 0.5, seconds=4.0, preferred=2.0) == 1.25
    assert utility(10, 0.5, seconds=2.0, preferred=4.0) == 5.0


def test_draws_are_in_proportion_to_rows() -> None:
    counts: Counter[int] = Counter()
    for server_round in range(4000):
        stream = numpy_stream(0, "test", server_round)
        counts.update(drawn(range(4), [1.0, 2.0, 5.0, 0.0], 1, stream))
    shares = [counts[k] / 4000 for k in range(4)]
    assert shares == pytest.approx([0.125, 0.25, 0.625, 0.0], abs=0.03)


def test_the_largest_and_ties() -> None:
    assert largest([7, 3, 5], [1.0, 2.0, 2.0], 2) == [3, 5]


def test_round_robin_asks_all_alike_and_lets_the_absent_catch_up() -> None:
    assert set(asked_over(select("round-robin"), 10, 10, 3).values()) == {3}
    selection = select("round-robin")
    for server_round in range(1, 5):
        selection.draw(range(1, 6), 2, server_round, 6)
    assert 0 in selection.draw(range(6), 2, 5, 6)


@pytest.mark.parametrize("way", ["power-of-choice", "oort"])
@pytest.mark.parametrize("lie", [1e30, 50.0])
def test_a_claimed_loss_buys_no_more_than_its_ratio(way: Way, lie: float) -> None:
    selection = select(way)
    total: Counter[int] = Counter()
    for server_round in range(1, 101):
        chosen = selection.draw(range(10), 2, server_round, 10)
        total.update(chosen)
        hear(selection, {k: lie if k == 7 else 1.0 for k in chosen})
    assert total[7] <= 2.0 * 20 + 1


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 50)),
    st.integers(1, 10),
    st.floats(1.0, 5.0),
)
def test_those_within_their_share(asked: dict[int, int], count: int, ratio: float) -> None:
    allowed = within_share(range(10), asked, count, 10, ratio)
    assert len(allowed) >= count and allowed == sorted(allowed)
    assert within_share(range(10), {}, count, 10, ratio) == list(range(10))
    mean = (sum(asked.values()) + count) / 10
    over = [k for k in allowed if asked.get(k, 0) + 1 > max(1.0, ratio * mean)]
    assert not over or len(allowed) == count


@settings(max_examples=30)
@given(
    st.sampled_from(WAYS),
    st.integers(1, 12),
    st.integers(1, 12),
    st.lists(st.floats(0, 1e30), min_size=12, max_size=12),
)
def test_draws_are_of_those_who_may_be_and_as_many(
    way: Way, clients: int, count: int, losses: list[float]
) -> None:
    selection = select(way, [float(k) for k in range(12)])
    for server_round in (1, 2, 30):
        chosen = selection.draw(range(clients), count, server_round, clients)
        assert len(chosen) == min(count, clients) and chosen == sorted(set(chosen))
        hear(selection, {k: losses[k] for k in chosen})
    again = select(way, [float(k) for k in range(12)])
    again.restore(selection.state())
    assert again.draw(range(clients), count, 31, clients) == selection.draw(
        range(clients), count, 31, clients
    )


def test_oort_explores_less_with_time_and_keeps_what_is_worth_most() -> None:
    total = asked_over(select("oort"), 200, 40, 4)
    assert set(total) == set(range(40)), "each was tried"
    later = np.array([total[k] for k in range(40)])
    assert later[20:].sum() > later[:20].sum(), "their losses are larger"


@pytest.mark.parametrize("way", WAYS)
def test_a_run_by_each_way(way: str) -> None:
    trace = play(selection=way, clients_per_round=2, num_rounds=4)
    assert [len(t.train.rows) for t in trace.reports if t.train] == [2] * 4
    assert final_bits(selection=way, clients_per_round=2, num_rounds=4) == {
        name: array.tobytes() for name, array in trace.arrays[-1].items()
    }


@pytest.mark.parametrize("method", ["fedmd", "fedal", "feddf-al", "fccl", "scaffold"])
def test_a_loss_told_in_any_exchange_of_a_round_counts(method: str) -> None:
    """The last of the first four, of outputs on public rows, tells none.

    SCAFFOLD asks all clients for their examples first, which is no training.
    """
    public: dict[str, Any] = (
        {} if method == "scaffold" else {"public_size": 32, "transfer_steps": 2}
    )
    trace = run_digits(
        digits_experiment(
            method=method,
            local_steps=2,
            clients_per_round=2,
            selection="power-of-choice",
            selection_ratio="off",
            **public,
        )
    )
    rounds = [
        {row["client"]: row["loss"] for row in report.train.rows}
        for report in trace.reports
        if report.train
    ]
    # Who never trained comes first. Then all four are candidates.
    told = {**rounds[0], **rounds[1]}
    assert sorted(told) == [0, 1, 2, 3]
    assert sorted(rounds[2]) == sorted(sorted(told, key=lambda k: told[k])[-2:])


def test_an_exchange_before_the_last_tells_a_loss_and_nothing_else() -> None:
    """As where SCAFFOLD asks all clients for their examples: that is no training."""
    selection = select("oort")
    selection.hear(ClientReply(0, {}, {"loss": 2.0}, 10.0))
    selection.hear(ClientReply(1, {}, {}, 10.0))
    assert not selection.losses and not selection.trained
    list(selection.reply(ClientReply(0, {}, {}, 10.0)))
    assert selection.losses == {0: 2.0}
    selection.draw([0, 1], 1, 2, 2)
    list(selection.reply(ClientReply(0, {}, {}, 10.0)))
    assert selection.losses == {0: 0.0}, "of another round"


def test_fedbuff_fills_its_places_by_the_way() -> None:
    values = {"method": "fedbuff", "clients_per_round": 2, "num_rounds": 4}
    assert final_bits(selection="round-robin", **values) != final_bits(**values)


def test_clients_of_another_app_must_tell_their_losses() -> None:
    def mute(replies: list[Any]) -> list[Any]:
        for reply in replies:
            set_metrics(loss=None)(reply.content, "")
        return replies

    strategy = FedAvg(selection="oort", clients_per_round=2)
    with pytest.raises(RunError, match="no client tells the metric 'loss'"):
        run(strategy, TamperingGrid(matrix_app(), 3, mute), 1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"selection": "oort"}, "clients-per-round"),
        ({"selection": "oort", "method": "standalone"}, "clients-per-round|every client"),
        ({"selection": "oort", "method": "cyclic"}, "each client has its turn"),
        (
            {
                "selection": "oort",
                "clients-per-round": 2,
                "target-epsilon": 9.0,
            },
            "no sample that an accountant counts",
        ),
        (
            {"selection": "oort", "clients-per-round": 4, "secure-aggregation": "masked"},
            "no client tells its loss",
        ),
        (
            {
                "selection": "power-of-choice",
                "clients-per-round": 4,
                "selection-candidates": 3,
            },
            "all of them are asked",
        ),
    ],
)
def test_what_cannot_go_together_is_refused(values: dict[str, Any], words: str) -> None:
    from fedsuite.experiment.experiment import Experiment

    with pytest.raises(ConfigError, match=words):
        Experiment.from_values(values)
