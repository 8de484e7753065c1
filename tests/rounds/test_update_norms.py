"""What rows say of the lengths of clients' updates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedsuite.messages.records import ARRAYS, TRAIN, Arrays
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.guard import NO_LIMIT, Guard
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from tests.helpers import TamperingGrid, matrix_app, play, run, strategy_for

POINTS = ([1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [2.0, 1.0], [10.0, -10.0])
NORMS = (1.0, 2.0, 2**0.5, 5**0.5, 200**0.5)


def rows_of(updates: Any, start: float = 3.0) -> list[dict[str, Any]]:
    """Return the rows of clients with these updates of one array."""
    guard, report = Guard(NO_LIMIT, NO_LIMIT), PhaseReport(TRAIN)
    sent: Arrays = {"w": np.full(len(updates[0]), start), "n": np.array(5)}
    # What a normalisation layer has seen is no part of the update.
    sent["1.running_mean"] = np.zeros(3)
    exchange = Exchange(TRAIN, range(len(updates)), {ARRAYS: sent})
    for client_id, update in enumerate(updates):
        model = {"w": sent["w"] + update, "n": np.array(1000)}
        model["1.running_mean"] = np.full(3, 1e6)
        reply = ClientReply(client_id, {ARRAYS: model}, {}, 1.0)
        report.add(reply)
        guard.open(exchange)
        assert list(guard.reply(reply)) == [reply]
    guard.tell_norms(report)
    return report.rows


def test_golden_lengths() -> None:
    rows = rows_of(POINTS)
    assert [row["update_norm"] for row in rows] == pytest.approx(NORMS)
    assert [row["norm_ratio"] for row in rows] == pytest.approx([n / 2 for n in NORMS])


def test_a_client_alone_and_updates_of_no_length() -> None:
    (alone,) = rows_of([[3.0, 4.0]])
    assert (alone["update_norm"], alone["norm_ratio"]) == (5.0, 1.0)
    still = rows_of([[0.0], [0.0], [1.0]])
    assert "norm_ratio" not in still[0]


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3, 1e25, 3e38])
def test_float32_models_of_any_size_are_measured(scale: float) -> None:
    draws = np.random.default_rng(2).uniform(-1, 1, size=5000)
    model = (scale * draws).astype(np.float32)
    row, other = rows_of_float32([model, -model])
    true = float(np.linalg.norm(2 * model.astype(np.float64)))
    assert row["update_norm"] == pytest.approx(true, rel=3e-7, abs=0.0)
    assert other["update_norm"] == row["update_norm"]


def rows_of_float32(models: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of clients that send these models, and got their negatives."""
    guard, report = Guard(NO_LIMIT, NO_LIMIT), PhaseReport(TRAIN)
    for client_id, model in enumerate(models):
        exchange = Exchange(TRAIN, [client_id], {ARRAYS: {"w": -model}})
        reply = ClientReply(client_id, {ARRAYS: {"w": model}}, {}, 1.0)
        report.add(reply)
        guard.open(exchange)
        assert list(guard.reply(reply)) == [reply]
    guard.tell_norms(report)
    return report.rows


def test_a_run_of_the_tiny_federation() -> None:
    """Updates 1, 2 and 4 in four entries."""
    trace = run(strategy_for("hosted"), TamperingGrid(matrix_app(), 3))
    rows = trace.reports[0].train.rows
    assert [row["update_norm"] for row in rows] == [2.0, 4.0, 8.0]
    assert [row["norm_ratio"] for row in rows] == [0.5, 1.0, 2.0]
    assert not {"train_update_norm"} & set(trace.reports[0].metrics)


def test_methods_without_a_model_from_clients_have_no_such_columns() -> None:
    trace = play(method="fd", num_rounds=1)
    assert "update_norm" not in trace.reports[0].train.rows[0]


def test_rewarded_clients_are_measured_from_the_model_that_they_got() -> None:
    trace = play(method="cgsv", num_rounds=2)
    lengths = [row["update_norm"] for row in trace.reports[1].train.rows]
    assert 0 < min(lengths) < max(lengths) < 10
