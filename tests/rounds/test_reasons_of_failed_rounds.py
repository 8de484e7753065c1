"""A round that fails although its replies were good says why in its events."""

import pytest

from fedsuite.strategies import FedAvg
from tests.helpers import TamperingGrid, matrix_app, run


@pytest.mark.parametrize(("num_nodes", "fails"), [(2, True), (3, False)])
def test_a_rule_with_too_few_replies_is_an_event(num_nodes: int, fails: bool) -> None:
    """Where one may lie, a median needs three."""
    strategy = FedAvg(aggregator="median", seed=0)
    trace = run(strategy, TamperingGrid(matrix_app(), num_nodes), 1)
    reasons = [rejection.reason for rejection in trace.reports[0].train.rejections]
    assert len(reasons) == fails
    assert all("aggregator = 'median' needs 3 clients" in reason for reason in reasons)
