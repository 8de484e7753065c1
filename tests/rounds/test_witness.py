"""What rows say of clients' updates: lengths, cosines with the others, and their cost."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsuite.messages.records import ARRAYS, TRAIN, Arrays
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from fedsuite.rounds.witness import WIDTH, Sketcher, Witness, cosines, sums_of_others
from tests.helpers import TamperingGrid, matrix_app, play, run, strategy_for

POINTS = ([1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [2.0, 1.0], [10.0, -10.0])
NORMS = (1.0, 2.0, 2**0.5, 5**0.5, 200**0.5)


def rows_of(updates: Any, start: float = 3.0, **weights: float) -> list[dict[str, Any]]:
    """Return the rows of clients with these updates of one array."""
    witness, report = Witness(), PhaseReport(TRAIN)
    sent: Arrays = {"w": np.full(len(updates[0]), start), "n": np.array(5)}
    exchange = Exchange(TRAIN, range(len(updates)), {ARRAYS: sent})
    witness.begin()
    for client_id, update in enumerate(updates):
        model = {"w": sent["w"] + update, "n": np.array(1000)}
        reply = ClientReply(client_id, {ARRAYS: model}, {}, 1.0)
        report.add(reply)
        witness.take(exchange, reply)
        if weights:
            report.annotate(client_id, weight=weights[f"w{client_id}"])
    witness.tell(report)
    return report.rows


def test_golden_lengths_and_cosines() -> None:
    rows = rows_of(POINTS)
    assert [row["update_norm"] for row in rows] == pytest.approx(NORMS)
    assert [row["norm_ratio"] for row in rows] == pytest.approx([n / 2 for n in NORMS])
    # The liar's (10, -10) against the others' sum (6, 2).
    assert rows[4]["cosine"] == pytest.approx(40 / (200 * 40) ** 0.5) == 0.4472135955
    # (1, 0) against (15, -8).
    assert rows[0]["cosine"] == pytest.approx(15 / 17)


def test_the_methods_weights_weigh_the_others() -> None:
    weights = {"w0": 0.5, "w1": 0.2, "w2": 0.2, "w3": 0.1, "w4": 0.0}
    rows = rows_of(POINTS, **weights)
    # (1, 1) against 0.5 (1, 0) + 0.2 (2, 0) + 0.1 (2, 1).
    assert rows[2]["cosine"] == pytest.approx(1.2 / (2 * (1.1**2 + 0.1**2)) ** 0.5)


def test_a_client_alone_and_updates_of_no_length() -> None:
    (alone,) = rows_of([[3.0, 4.0]])
    assert (alone["update_norm"], alone["norm_ratio"]) == (5.0, 1.0)
    assert "cosine" not in alone
    still = rows_of([[0.0], [0.0], [1.0]])
    assert [row["cosine"] for row in still] == [0.0, 0.0, 0.0]
    assert "norm_ratio" not in still[0]


def test_large_updates_are_sketched_within_the_stated_error() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(size=60_000)
    updates = [common + rng.normal(size=common.size) for _ in range(4)] + [-2 * common]
    rows = rows_of(updates)
    for k, row in enumerate(rows):
        others = np.sum([u for j, u in enumerate(updates) if j != k], axis=0)
        (true,) = cosines(updates[k][None], others[None])
        assert row["update_norm"] == pytest.approx(float(np.linalg.norm(updates[k])))
        assert row["cosine"] == pytest.approx(true, abs=0.1)
    assert rows[4]["cosine"] < -0.8 < 0.2 < rows[0]["cosine"]


@given(st.integers(0, 40 * WIDTH), st.integers(0, WIDTH))
@example(WIDTH, 5)
@example(WIDTH + 1, 5)
@settings(max_examples=20, deadline=None)
def test_each_value_goes_to_its_bucket(size: int, first: int) -> None:
    values, sketcher = np.arange(1.0, size + 1), Sketcher()
    # Memory of another size is there already.
    sketcher.of([(np.ones(3 * WIDTH), None)], np.dtype("f8"))
    pairs = [
        (values[:first] + 7, np.full(len(values[:first]), 7.0)),
        (values[first:], None),
    ]
    squares, sketch = sketcher.of(pairs, np.dtype("f8"))
    assert squares == pytest.approx(float(np.square(values).sum()))
    signs = sketcher._signs.reshape(-1)[:size] if size > WIDTH else np.ones(size)
    buckets = np.arange(size) % WIDTH
    assert np.array_equal(sketch, np.bincount(buckets, signs * values, WIDTH))


def test_signs_are_as_often_plus_as_minus() -> None:
    sketcher = Sketcher()
    sketcher.of([(np.ones(50 * WIDTH), None)], np.dtype("f8"))
    assert set(np.unique(sketcher._signs)) == {-1.0, 1.0}
    assert abs(float(sketcher._signs.mean())) < 0.01


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3, 1e25, 3e38])
def test_float32_models_of_any_size_are_measured(scale: float) -> None:
    draws = np.random.default_rng(2).uniform(-1, 1, size=5000)
    model = (scale * draws).astype(np.float32)
    (row, other) = rows_of_float32([model, -model])
    true = float(np.linalg.norm(2 * model.astype(np.float64)))
    assert row["update_norm"] == pytest.approx(true, rel=1e-7)
    assert other["cosine"] == pytest.approx(-1.0 if scale else 0.0)


def rows_of_float32(models: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of clients that send these models, and got their negatives."""
    witness, report = Witness(), PhaseReport(TRAIN)
    witness.begin()
    for client_id, model in enumerate(models):
        exchange = Exchange(TRAIN, [client_id], {ARRAYS: {"w": -model}})
        reply = ClientReply(client_id, {ARRAYS: {"w": model}}, {}, 1.0)
        report.add(reply)
        witness.take(exchange, reply)
    witness.tell(report)
    return report.rows


def test_a_run_of_the_tiny_federation() -> None:
    """Updates 1, 2 and 4 in four entries: all point the same way."""
    trace = run(strategy_for("hosted"), TamperingGrid(matrix_app(), 3))
    rows = trace.reports[0].train.rows
    assert [row["update_norm"] for row in rows] == [2.0, 4.0, 8.0]
    assert [row["norm_ratio"] for row in rows] == [0.5, 1.0, 2.0]
    assert [row["cosine"] for row in rows] == pytest.approx([1.0] * 3)
    assert not {"train_cosine", "train_update_norm"} & set(trace.reports[0].metrics)


def test_methods_without_a_model_from_clients_have_no_such_columns() -> None:
    trace = play(method="fd", num_rounds=1)
    assert "update_norm" not in trace.reports[0].train.rows[0]


def test_rewarded_clients_are_measured_from_the_model_that_they_got() -> None:
    trace = play(method="cgsv", num_rounds=2)
    lengths = [row["update_norm"] for row in trace.reports[1].train.rows]
    assert 0 < min(lengths) < max(lengths) < 10


def test_cosines_of_rows_without_a_direction() -> None:
    left = np.array([[3.0, 4.0], [0.0, 0.0], [1e200, 1e200], [1.0, 0.0]])
    right = np.array([[4.0, 3.0], [1.0, 1.0], [1e200, 1e200], [0.0, 2.0]])
    assert cosines(left, right).tolist() == pytest.approx([0.96, 0.0, 0.0, 0.0])


def test_sums_of_others_survive_an_enormous_one() -> None:
    rows = np.array([[1.0], [1e30], [2.0], [4.0]])
    assert sums_of_others(rows)[1].tolist() == [7.0]
    small = np.array([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0]])
    assert sums_of_others(small).tolist() == [[10.0, 16.0], [8.0, 13.0], [4.0, 7.0]]
