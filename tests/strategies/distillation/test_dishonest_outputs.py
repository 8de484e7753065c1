"""What one liar of five makes of the clients' outputs; the page's table is recomputed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.messages.records import CLASS_TABLE, COUNTS, LOGITS, ROWS, Arrays
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.distillation.fedproto import FedProto
from fedsuite.strategies.distillation.public_exchange import (
    LOUDEST,
    bounded,
    mean_outputs,
)
from fedsuite.strategies.reward.cgsv import total_update
from fedsuite.strategies.reward.fedave import data_values
from fedsuite.strategies.reward.reputation import normalised

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "dishonest_clients.md"


def outputs(length: float) -> dict[int, Arrays]:
    """Return four honest outputs along the first axis, and a liar's along the second."""
    honest = {k: {LOGITS: np.array([[1.0, 0.0]], np.float32)} for k in range(4)}
    return {**honest, 4: {LOGITS: np.array([[0.0, length]], np.float32)}}


def share(mean: np.ndarray) -> float:
    first, second = mean.reshape(-1).tolist()
    return float(second / (first + second))


def liars_share(length: float) -> float:
    return share(mean_outputs(bounded(outputs(length)))[LOGITS])


def test_the_pages_figures() -> None:
    before = share(mean_outputs(outputs(1e6))[LOGITS])
    shares = (liars_share(1.0), before, liars_share(1e6), liars_share(LOUDEST))
    line = " | ".join(f"{value:.2f}" for value in shares)
    assert f"| `fedmd`, `fedal`, `fccl`, `cfd`, `feddf` | {line} |" in PAGE.read_text()
    for length in (1.0, 1e6):
        updates = [np.array([1.0, 0.0])] * 4 + [np.array([0.0, length])]
        total = total_update([normalised(u, 0.5) for u in updates], np.full(5, 0.2))
        assert share(total) == pytest.approx(0.2)


@given(st.lists(st.floats(1.0, LOUDEST), min_size=1, max_size=6))
def test_honest_outputs_keep_their_bits(lengths: list[float]) -> None:
    held = {k: {LOGITS: np.array([[x, -x]])} for k, x in enumerate(lengths)}
    for k, arrays in bounded(held).items():
        assert arrays[LOGITS] is held[k][LOGITS]


def test_two_clients_and_silent_ones_are_left_alone() -> None:
    two = {0: {LOGITS: np.ones(1)}, 1: {LOGITS: np.full(1, 1e5)}}
    assert bounded(two) == two
    silent = {k: {LOGITS: np.full(1, float(k == 2))} for k in range(3)}
    assert bounded(silent) == silent


def test_a_guess_of_the_servers_losses_leaves_the_others_a_hundredth() -> None:
    assert data_values(np.array([1e-12, 1.0, 1.0])).tolist() == [1.0, 0.01, 0.01]
    assert data_values(np.array([0.5, 1.0, 2.0])).tolist() == [1.0, 0.5, 0.25]


def test_one_loud_table_does_not_own_the_prototypes() -> None:
    """The liar's ones count as one of four: (3 + 1) / 4, not a million."""
    strategy = FedProto(num_classes=2)
    honest = np.ones((2, 3), np.float32)
    tables = [honest, honest, honest, honest * np.float32(1e5)]
    counts = np.array([4, 4], np.uint32)
    replies = [
        ClientReply(k, {CLASS_TABLE: {ROWS: rows, COUNTS: counts}}, {}, 8.0)
        for k, rows in enumerate(tables)
    ]
    strategy.take_tables(replies)
    assert strategy.prototypes[ROWS] == pytest.approx(honest)
