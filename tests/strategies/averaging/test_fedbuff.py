"""FedBuff: late replies by hand, the extreme that is FedAvg, and replies that wait."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.rounds import outstanding
from fedsuite.strategies.averaging import fedbuff
from fedsuite.strategies.averaging.fedbuff import FedBuff, discount
from fedsuite.strategies.averaging.late_replies import change_of, moved
from tests.faults.runs import EXPERIMENTS
from tests.helpers import TamperingGrid, final_bits, matrix_app, play, run

SLOW = {1000: 1.0, 1001: 9.5, 1002: 2.0}
"""How long the three clients train, by node."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedbuff, "planned_length", lambda *key: SLOW[key[-1]])


@pytest.mark.parametrize(
    ("staleness", "power", "expected"),
    [(0, 0.5, 1.0), (3, 0.5, 0.5), (1, 1.0, 0.5), (7, 0.0, 1.0)],
)
def test_discount(staleness: int, power: float, expected: float) -> None:
    assert discount(staleness, power) == pytest.approx(expected)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 1))
def test_a_change_moves_what_is_trained_by_its_share(
    sent: float, trained: float, now: float, share: float
) -> None:
    def model(value: float) -> dict[str, np.ndarray]:
        return {"w": np.float64([value]), "bn.num_batches_tracked": np.int64([4])}

    change = change_of(model(trained), model(sent))
    found = moved(model(now), change, share)
    assert found["w"] == pytest.approx(now + share * (trained - sent))
    assert found["bn.num_batches_tracked"] == 4


def test_all_replies_are_fedavg_bit_for_bit() -> None:
    plain = final_bits(clients_per_round=3)
    assert final_bits(method="fedbuff", fedbuff_share=1.0, clients_per_round=3) == plain
    equal = {"method": "fedbuff", "fedbuff_share": 1.0, "fedbuff_spread": 0.0}
    assert final_bits(**equal) == final_bits()


def test_rounds_by_hand(slow: None) -> None:
    """Step 1 towards 1, 2, 4 of 10, 30, 40 rows; two replies close a round.

    Round 1: clients 0 and 2 come, at time 2. Round 2: they train again, come at 4, ...
    Client 1 needs until 9.5, so that it comes in round 5, four rounds late.
    """
    grid = TamperingGrid(matrix_app(), 3)
    trace = run(FedBuff(fedbuff_share=0.67), grid, 5)
    asked = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert len(asked) == 3 + 4 * 2
    rows = [[row["client"] for row in report.train.rows] for report in trace.reports]
    assert rows == [[1000, 1002]] * 4 + [[1000, 1001]]
    late = trace.reports[-1].train.rows[1]
    assert late["staleness"] == 4.0
    assert trace.reports[-1].method_metrics["clock"] == 9.5


def test_a_late_reply_counts_by_its_discount(slow: None) -> None:
    """Client 1's change from round 1, times 5^-0.5, is what the last round adds of it."""
    shares = {}
    for power in (0.0, 0.5):
        strategy = FedBuff(fedbuff_share=0.67, fedbuff_discount=power)
        trace = run(strategy, TamperingGrid(matrix_app(), 3), 5)
        shares[power] = trace.weights[-1] - trace.weights[-2]
        row = {r["client"]: r for r in trace.reports[-1].train.rows}
        counts = {k: row[k]["num_examples"] for k in row}
    change = shares[0.0] - shares[0.5]
    # What client 1 made of the zeros that it got, by its share of the two clients' rows.
    alone = _trained_alone(1)
    expected = counts[1001] / sum(counts.values()) * alone * (1 - 5**-0.5)
    assert change == pytest.approx(expected)


def _trained_alone(client_id: int) -> float:
    """Return the model that a client makes of zeros."""
    grid = TamperingGrid(matrix_app(), 3, lambda replies: [replies[client_id]])
    [weight] = run(FedBuff(quorum=1, fedbuff_share=1.0), grid, 1).weights
    return weight


class WaitingGrid(TamperingGrid):
    """A grid whose replies come after so many pulls as the node is numbered."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.pulls: dict[str, int] = {}
        self.waits: dict[str, int] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        ids = super().push_messages(sent)
        for key, message in zip(ids, sent, strict=True):
            self.waits[key] = 4 * (message.metadata.dst_node_id == 1001)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        there = []
        for key in message_ids:
            self.pulls[key] = self.pulls.get(key, 0) + 1
            if self.pulls[key] > self.waits[key]:
                there.append(key)
        return super().pull_messages(there)


def test_real_replies_count_when_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outstanding, "_POLL_SECONDS", 0.0)
    strategy = FedBuff(fedbuff_share=0.67, fedbuff_delays="real")
    trace = run(strategy, WaitingGrid(matrix_app(), 3), 5)
    rows = [[row["client"] for row in report.train.rows] for report in trace.reports]
    assert rows[:4] == [[1000, 1002]] * 4 and 1001 in rows[4]
    late = next(row for row in trace.reports[4].train.rows if row["client"] == 1001)
    assert late["staleness"] == 4.0


def test_real_replies_that_never_come_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outstanding, "_POLL_SECONDS", 0.0)

    class Silent(WaitingGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return super().pull_messages(k for k in message_ids if not self.waits[k])

    strategy = FedBuff(fedbuff_delays="real", fedbuff_share=0.67)
    grid = Silent(matrix_app(), 3)
    clock = iter(range(10_000))
    monkeypatch.setattr(outstanding.time, "monotonic", lambda: 700.0 * next(clock))
    trace = run(strategy, grid, 2)
    reasons = [r.reason for t in trace.reports for r in t.train.rejections]
    assert "no reply before the deadline" in reasons


def test_a_resumed_run_has_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    values = {**EXPERIMENTS["scaffold"], "method": "fedbuff", "fedbuff-share": 0.5}
    values |= {"num-rounds": 4, "output-dir": str(tmp_path), "server-optimizer": "yogi"}
    whole = fedsuite.run(values, overrides={"run-name": "whole"})
    part = fedsuite.run(values, overrides={"run-name": "part"})
    later = fedsuite.resume(part.path, from_round=3)
    assert (whole.path / "model.safetensors").read_bytes() == (
        later.path / "model.safetensors"
    ).read_bytes()


def test_what_needs_one_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="models of several rounds"):
        play(method="fedbuff", fedvarp=True)
    with pytest.raises(ValueError, match="models of several rounds"):
        FedBuff(fedvarp=True)


def test_half_of_the_trainings_are_shorter_than_1() -> None:
    lengths = [fedbuff.planned_length(0, 1.0, 1, client) for client in range(400)]
    assert 0.4 < np.mean(np.array(lengths) < 1.0) < 0.6
    assert 0.8 < np.std(np.log(lengths)) < 1.2
    assert fedbuff.planned_length(0, 0.0, 1, 7) == math.exp(0.0)
