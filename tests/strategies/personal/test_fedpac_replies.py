"""FedPAC: hostile uploads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    METRICS,
    client_record,
)
from fedsuite.strategies.personal.fedpac import FedPAC, collaboration_matrix, head_weights
from tests.helpers import Trace
from tests.strategies.personal.own_heads import MEANS, VARIANCES, started

Change = Callable[[Any, Callable[[str], str]], None]


def tampered(change: Change) -> tuple[Trace, FedPAC]:
    """Run two rounds in which client 1's reply is changed."""

    def tamper(replies: list[Message]) -> list[Message]:
        change(replies[1].content, lambda name: client_record(1, name))
        return replies

    _, strategy, trace = started(tamper, (1, 2), num_rounds=2)
    return trace, strategy


def statistics(**arrays: Any) -> Change:
    """Return a change of the statistics; a function gets the array that was there."""

    def change(content: Any, record: Callable[[str], str]) -> None:
        key = record("statistics")
        found = to_arrays(content.array_records[key])
        for name, make in arrays.items():
            found[name.replace("_", "-")] = make(found[name.replace("_", "-")])
        content[key] = to_record(found)

    return change


def variance(value: float) -> Change:
    def change(content: Any, record: Callable[[str], str]) -> None:
        content.metric_records[record(METRICS)]["feature-variance"] = value

    return change


def no_head(content: Any, record: Callable[[str], str]) -> None:
    del content[record("head")]


REFUSED: dict[str, tuple[Change, str]] = {
    "negative-counts": (
        statistics(counts=lambda a: -a.astype(np.int64)),
        "array counts: dtype int64, expected uint32",
    ),
    "other-classes": (statistics(counts=lambda a: a[:3]), "array counts: shape (3,)"),
    "nan": (statistics(prototypes=lambda a: a * np.nan), "array prototypes"),
    "infinite": (
        statistics(scaled_means=lambda a: np.full_like(a, np.inf)),
        "array scaled-means: holds NaN or infinity",
    ),
    "negative-variance": (variance(-1e-9), "feature-variance is -1e-09: expected 0"),
    "huge-variance": (variance(1e91), "feature-variance is 1e+91: expected 0"),
    "no-head": (no_head, "array record 'head' is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_uploads_are_dropped(name: str) -> None:
    change, reason = REFUSED[name]
    trace, strategy = tampered(change)
    assert [r.client_id for report in trace.reports for r in report.train.rejections] == [
        1,
        1,
    ]
    assert reason in trace.reports[0].train.rejections[0].reason
    assert set(strategy.heads) == {0, 2, 3}


LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    "change",
    [
        statistics(scaled_means=lambda a: np.full_like(a, LARGEST)),
        statistics(scaled_means=np.zeros_like),
        variance(0.0),
        variance(1e90),
    ],
    ids=["largest-means", "no-means", "no-variance", "largest-variance"],
)
def test_hostile_statistics_cannot_stop_the_round(change: Change) -> None:
    trace, strategy = tampered(change)
    assert not [r for report in trace.reports for r in report.train.rejections]
    for head in strategy.heads.values():
        assert all(np.isfinite(array).all() for array in head.values())


def test_a_stranger_gets_no_weight_and_takes_none_from_others() -> None:
    """A client as far away as float32 allows, in a direction of its own."""
    far, _ = tampered(statistics(scaled_means=lambda a: np.full_like(a, LARGEST)))
    assert far.reports[0].train.rows[1]["own_head_weight"] == 1.0
    expected = head_weights(collaboration_matrix(MEANS, VARIANCES, 0), 0)
    means = np.vstack([MEANS, [0.0, float(LARGEST), 0.0, 0.0]])
    matrix = collaboration_matrix(means, np.append(VARIANCES, 0.0), 0)
    assert head_weights(matrix, 0) == pytest.approx([*expected, 0.0], abs=1e-9)


def test_claimed_counts_weigh_no_more_than_the_examples() -> None:
    claimed = tampered(statistics(counts=lambda a: a * 1000))[1].prototypes
    honest = tampered(statistics())[1].prototypes
    assert claimed["present"].tolist() == honest["present"].tolist()
    np.testing.assert_allclose(claimed["means"], honest["means"], rtol=1e-4, atol=1e-6)


def test_clients_that_claim_no_examples_lend_no_head() -> None:
    _, strategy = tampered(statistics(counts=np.zeros_like))
    assert set(strategy.heads) == {0, 2, 3}
