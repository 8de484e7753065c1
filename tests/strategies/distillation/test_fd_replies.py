"""FD: tables that clients tell, bad ones and good ones."""

from typing import Any

import numpy as np
import pytest

from fedsuite.clients.distillation.fd import FDClient
from fedsuite.messages.records import COUNTS, ROWS
from fedsuite.strategies.distillation.fd import FD
from tests.strategies.distillation.public import Federation, lying, small, tables_of


def even(**changes: Any) -> dict[str, np.ndarray]:
    told = {ROWS: np.full((3, 3), 1 / 3, np.float32), COUNTS: np.ones(3, np.uint32)}
    return told | changes


NEGATIVE = np.array([[1.5, -0.5, 0.0]] * 3, np.float32)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (even(rows=np.full((3, 3), np.nan, np.float32)), "NaN"),
        (even(rows=np.full((3, 3), 1e7, np.float32)), "beyond 1e"),
        (even(rows=np.full((2, 3), 1 / 3, np.float32)), "shape"),
        (even(rows=np.ones((3, 3), np.int64)), "dtype"),
        (even(counts=np.ones(3, np.int64)), "dtype"),
        (even(counts=np.ones(4, np.uint32)), "shape"),
        (even(counts=np.array([1, 1, 0], np.uint32)), "says it does not have"),
        (even(rows=np.full((3, 3), 1 / 2, np.float32)), "no probabilities"),
        (even(rows=NEGATIVE), "no probabilities"),
    ],
)
def test_bad_tables_are_not_used(told: dict[str, np.ndarray], reason: str) -> None:
    federation = Federation(lying(FDClient, told), [small, small, small])
    strategy = tables_of(FD)
    trace = federation.run(strategy, 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1 and reason in rejection.reason
    assert sorted(strategy.tables) == [0, 2]


def test_a_good_table_of_a_stranger_is_used() -> None:
    federation = Federation(lying(FDClient, even()), [small, small, small])
    strategy = tables_of(FD)
    trace = federation.run(strategy, 1)
    assert trace.reports[0].train.rejections == []
    np.testing.assert_array_equal(strategy.tables[1], even()[ROWS])


def test_large_counts_give_no_weight() -> None:
    told = even(counts=np.full(3, 1000, np.uint32))
    strategy = tables_of(FD)
    Federation(lying(FDClient, told), [small, small, small]).run(strategy, 1)
    mean = strategy.own_rows([0])[0][ROWS]
    expected = (strategy.tables[1] + strategy.tables[2]) / 2
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_a_round_below_the_quorum_changes_nothing() -> None:
    federation = Federation(lying(FDClient, even(rows=NEGATIVE)), [small, small, small])
    strategy = tables_of(FD, quorum=3)
    strategy.tables, strategy.present = {0: np.eye(3)}, {0: np.ones(3, bool)}
    federation.run(strategy, 1)
    assert list(strategy.tables) == [0]
    np.testing.assert_array_equal(strategy.tables[0], np.eye(3))
