"""The orders of filter decomposition: what is sent is read back, and nothing else."""

from typing import Any

import pytest

from fedsuite.core.errors import RunError
from fedsuite.messages.decomposition import (
    SLOW_VERSION,
    SYNC,
    DecompositionKeys,
    Orders,
    clients_take_part,
    server_takes_part,
)

ORDERS = Orders(
    DecompositionKeys(coefficient_period=3, local_coefficients="freeze"), 7, False
)


def test_orders_are_read_back() -> None:
    found = Orders.read(ORDERS.config())
    assert (found.slow_version, found.sync) == (7, False)
    assert found.config() == ORDERS.config()


@pytest.mark.parametrize(
    ("name", "value"),
    [(SLOW_VERSION, True), (SLOW_VERSION, "7"), (SYNC, 0), (SYNC, None)],
)
def test_an_order_of_another_type_is_refused(name: str, value: Any) -> None:
    """A truth is a whole number to Python, and no version."""
    config = {k: v for k, v in {**ORDERS.config(), name: value}.items() if v is not None}
    with pytest.raises(RunError, match=f"^the message has no (int|bool) {name}: give"):
        Orders.read(config)


def test_a_value_that_is_none_of_the_keys_is_refused() -> None:
    with pytest.raises(RunError, match=r"^the message says .*coefficient.period = 0"):
        Orders.read({**ORDERS.config(), "coefficient-period": 0})


@pytest.mark.parametrize(
    ("values", "clients", "server"),
    [
        ({}, False, False),
        ({"coefficient-period": 1, "decomposition-average": "factors"}, False, False),
        ({"coefficient-period": 2}, True, True),
        ({"freeze-atoms": True}, True, True),
        ({"decomposition-average": "products"}, False, True),
        ({"measure-cross-terms": True}, False, True),
    ],
)
def test_who_takes_part(values: dict[str, Any], clients: bool, server: bool) -> None:
    assert (clients_take_part(values), server_takes_part(values)) == (clients, server)
