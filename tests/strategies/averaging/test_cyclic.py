"""Cyclic weight transfer: whose turn it is, by hand and by property."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.strategies.averaging.cyclic import Cyclic
from tests.helpers import TamperingGrid, Trace, final_bits, matrix_app, run

VALUES = (1.0, 2.0, 3.0, 4.0, 5.0)


def cyclic(num_clients: int, num_rounds: int, **options: Any) -> Trace:
    values = VALUES[:num_clients]
    app = matrix_app(values=values, counts=[2] * num_clients)
    strategy = Cyclic(identity="partition", num_clients=num_clients, **options)
    return run(strategy, TamperingGrid(app, num_clients), num_rounds)


def asked(trace: Trace) -> list[list[int]]:
    return [[int(row["client"]) for row in report.train.rows] for report in trace.reports]


def test_the_model_is_that_of_the_client_whose_turn_it_is() -> None:
    """A step of 1 lands on the mean of a client's samples, whoever had the model before."""
    trace = cyclic(3, 6, max_update_norm="off")
    turns = [client for (client,) in asked(trace)]
    assert trace.weights == pytest.approx([VALUES[client] for client in turns])
    assert sorted(turns[:3]) == sorted(turns[3:]) == [0, 1, 2]


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 99))
def test_each_client_has_one_turn_in_a_cycle(clients: int, size: int, seed: int) -> None:
    size = min(size, clients)
    rounds = -(-clients // size)
    found = asked(cyclic(clients, 2 * rounds, clients_per_round=size, seed=seed))
    for cycle in (found[:rounds], found[rounds:]):
        turns = [client for each in cycle for client in each]
        assert len(turns) == len(set(turns)) == clients


def test_cycles_differ_in_order() -> None:
    turns = [client for (client,) in asked(cyclic(5, 25))]
    assert len({tuple(turns[k : k + 5]) for k in range(0, 25, 5)}) > 1


def test_all_clients_in_each_round_is_fedavg_bit_for_bit() -> None:
    assert final_bits(method="cyclic", clients_per_round=4) == final_bits(
        method="fedavg", clients_per_round=4
    )
    assert final_bits(method="cyclic") != final_bits(method="fedavg")
