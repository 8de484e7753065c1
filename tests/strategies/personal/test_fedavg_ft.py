"""FedAvg + fine-tuning: training is FedAvg's, only the score is of a tuned copy."""

import pytest

from fedsuite.strategies.personal.fedavg_ft import FedAvgFT
from tests.helpers import Trace, bits, play


def evaluations(trace: Trace) -> list[list[tuple[float, float]]]:
    """Loss and accuracy of each client in the rounds that were evaluated."""
    return [
        [(row["loss"], row["accuracy"]) for row in report.evaluate.rows]
        for report in trace.reports
        if report.evaluate is not None
    ]


def tuned(epochs: int, **changes: int) -> Trace:
    options = {"method": "fedavg-ft", "fine_tune_epochs": epochs, **changes}
    return play(**options)


def test_no_epochs_is_fedavg_and_more_change_only_the_evaluation() -> None:
    plain, none, two = play(), tuned(0), tuned(2)
    assert bits(none.arrays[-1]) == bits(two.arrays[-1]) == bits(plain.arrays[-1])
    assert [len(rows) for rows in evaluations(plain)] == [4, 4, 4]
    assert evaluations(none) == evaluations(plain)
    for before, after in zip(evaluations(plain), evaluations(two), strict=True):
        assert all(one[0] != other[0] for one, other in zip(before, after, strict=True))


def test_nothing_persists() -> None:
    """Round 3 is scored the same, whether rounds 1 and 2 were tuned too or not."""
    each, last = tuned(3), tuned(3, evaluate_every=3)
    assert len(evaluations(last)) == 1
    assert evaluations(each)[-1:] == evaluations(last)


def test_bad_number_of_epochs() -> None:
    with pytest.raises(ValueError, match="fine_tune_epochs = -1: expected"):
        FedAvgFT(fine_tune_epochs=-1)
