"""Rank-Core-Fed: elections by hand, the core by brute force, extremes, hostile ballots."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.fair.rank_core_fed import RankCoreFedClient
from fedsuite.messages.records import RANK, RANKING, Arrays, Reply, Request
from fedsuite.strategies.fair.rank_core_fed import RankCoreFed, elected
from tests.helpers import final_bits, play
from tests.strategies.fair.fair_rounds import (
    FEDAVG,
    MODELS,
    PLAIN_MEAN,
    START,
    fair_round,
    final,
    three,
)


def core(rankings: Sequence[Sequence[int]]) -> set[int]:
    """Return the models that no coalition blocks, by trying all coalitions."""
    voters, models = len(rankings), len(rankings[0])
    coalitions = chain.from_iterable(
        combinations(rankings, size) for size in range(1, voters + 1)
    )
    blocked = set()
    for coalition in coalitions:
        for model in range(models):
            better = [set(ranking[: list(ranking).index(model)]) for ranking in coalition]
            liked = len(set.intersection(*better))
            if Fraction(len(coalition), voters) > 1 - Fraction(liked, models):
                blocked.add(model)
    return set(range(models)) - blocked


@pytest.mark.parametrize(
    ("rankings", "winner", "unblocked"),
    [
        # 3 dies at 1/2, 0 at 1, 1 at 5/4.
        ([(0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0)], 2, {1, 2}),
        # 2 dies at 1/2, 0 and 1 together at 1.
        ([(0, 1, 2), (0, 1, 2), (2, 1, 0)], 0, {0, 1}),
        ([(2, 0, 1)], 2, {2}),
        ([(1, 0), (0, 1)], 0, {0, 1}),
    ],
)
def test_golden_elections(
    rankings: list[tuple[int, ...]], winner: int, unblocked: set[int]
) -> None:
    assert elected(rankings) == winner
    assert core(rankings) == unblocked


@given(
    st.integers(1, 5).flatmap(
        lambda models: st.lists(st.permutations(range(models)), min_size=1, max_size=5)
    )
)
def test_the_winner_is_in_the_core(rankings: list[list[int]]) -> None:
    assert elected(rankings) in core(rankings)


def test_extremes_are_fedavg_bit_for_bit() -> None:
    plain = final_bits(num_rounds=2)
    whole = {"method": "rank-core-fed", "num_rounds": 2, "client_validation_fraction": 0.0}
    assert final_bits(**whole, rank_every=3) == plain
    assert final_bits(**whole, rank_every=1, pool_size=1) == plain


def test_the_pool_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three the two with the higher losses are averaged by examples, 20 and 10."""
    pools: list[Sequence[Arrays]] = []

    def fourth(self: Any, pool: Sequence[Arrays], client_ids: Sequence[int]) -> Arrays:
        pools.append(pool)
        return pool[3]

    monkeypatch.setattr(RankCoreFed, "_elect", fourth)
    trace = fair_round(RankCoreFed(rank_every=1, **three()))
    fair = (-0.1 / 3, 0.4 / 3)
    np.testing.assert_allclose(final(trace), fair, atol=1e-7)
    models = [array for model in pools[0] for array in model.values()]
    np.testing.assert_allclose(
        models, [FEDAVG, START, PLAIN_MEAN, fair, *MODELS], atol=1e-7
    )


def test_an_election_is_reported() -> None:
    trace = play(method="rank-core-fed", num_rounds=2, rank_every=2)
    told = [report.metrics.get("elected_model") for report in trace.reports]
    assert told[0] is None
    assert told[1] in range(8)


def test_a_ballot_that_is_no_ranking_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = RankCoreFedClient.on_rank

    def stuffed(client: Any, request: Request) -> Reply:
        reply = honest(client, request)
        if client.client_id:
            return reply
        assert request.message_type == RANK
        ballot = np.zeros_like(reply.arrays[RANKING][RANKING])
        return Reply({RANKING: {RANKING: ballot}}, reply.metrics)

    monkeypatch.setattr(RankCoreFedClient, "on_rank", stuffed)
    trace = play(method="rank-core-fed", num_rounds=1, rank_every=1)
    (rejection,) = [r for phase in trace.reports[0].phases for r in phase.rejections]
    assert (rejection.client_id, "no permutation of 0 to" in rejection.reason) == (0, True)
    assert trace.reports[0].metrics["elected_model"] in range(8)
