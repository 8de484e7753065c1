"""FedAS: alignment, tau and weights by hand, FedPer bit for bit, and false replies."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsuite.clients.personal.fedas import FedASClient
from fedsuite.core.errors import ConfigError
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.personal.fedas import FedAS
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import aggregated, bits, for_client, play, run_digits, set_metrics
from tests.helpers import digits_experiment as digits

TOLD = {"alignment-epochs": 1, "alignment-rate": 0.01, "fedas-weights": "batches"}


class Line(nn.Module):
    """The feature b x, and two logits of it."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)
        nn.init.constant_(self.body.weight, slope)
        nn.init.zeros_(self.head.weight)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(features))
        return logits


def client(
    rows: list[tuple[float, int]], **training: Any
) -> tuple[FedASClient, MemoryStore]:
    """Return a client whose own slope is 1."""
    features, labels = zip(*rows, strict=True) if rows else ((), ())
    data = Split(torch.tensor(features).reshape(-1, 1), torch.tensor(labels).long())
    options = TrainingOptions(**{"local_epochs": 0, "batch_size": 16, **training})
    store = MemoryStore()
    return FedASClient(Line(), data, data, training=options, store=store), store


def train(rows: list[tuple[float, int]], received: float, **changes: Any) -> Any:
    told = {k.replace("_", "-"): v for k, v in changes.items()}
    batch = told.pop("batch-size", 16)
    asked, store = client(rows, batch_size=batch)
    slope = np.full((1, 1), received, dtype=np.float32)
    config = {"server-round": 1, **TOLD, **told}
    arrays = {ARRAYS: {"body.weight": slope}}
    reply = asked.answer(Request("train", 0, arrays, config, new_version="new"))
    return reply, store.load(0, "new")


@pytest.mark.parametrize(
    ("rows", "slope"),
    [([(1.0, 0)], 0.02), ([(1.0, 0), (2.0, 1)], 0.1), ([(1.0, 0), (1.0, 0)], 0.02)],
)
def test_golden_alignment(rows: list[tuple[float, int]], slope: float) -> None:
    """From 0 to features of slope 1: a class counts by the mean over its rows."""
    reply, kept = train(rows, 0.0)
    assert reply.arrays[ARRAYS]["body.weight"].item() == pytest.approx(slope)
    # The head stays while the body is aligned, and the whole model is kept.
    assert kept["head.weight"].tolist() == [[0.0], [0.0]]
    assert kept["body.weight"].item() == pytest.approx(slope)
    assert train(rows, 0.0, alignment_epochs=0)[1]["body.weight"].item() == 0.0


def test_an_unchanged_body_is_not_moved_by_one_row_of_each_class() -> None:
    assert train([(1.0, 0), (2.0, 1)], 1.0)[1]["body.weight"].item() == 1.0


@pytest.mark.parametrize(
    ("labels", "size", "tau"),
    [([0, 1], 16, 0.0), ([0, 0], 16, 0.5), ([0, 1], 1, 1.0), ([0, 0, 0], 2, 1.0)],
)
def test_golden_tau(labels: list[int], size: int, tau: float) -> None:
    """Zero heads at feature 1: a row's gradient is a half and minus a half."""
    rows = [(1.0, label) for label in labels]
    reply, _ = train(rows, 1.0, batch_size=size, alignment_epochs=0)
    assert reply.metrics["fisher"] == pytest.approx(tau)
    by_row, _ = train(rows, 1.0, fedas_weights="samples", alignment_epochs=0)
    assert by_row.metrics["fisher"] == pytest.approx(0.5)


def test_a_client_without_rows_weighs_nothing() -> None:
    reply, _ = train([], 0.5)
    assert reply.metrics["fisher"] == 0.0
    assert reply.arrays[ARRAYS]["body.weight"].item() == 0.5


GROUPS = ParameterGroups(head=("head",), other=("body",))


def mean(*replies: tuple[list[float], float, float], **keys: Any) -> list[float]:
    """Return the new body of bodies, taus and examples."""
    strategy = FedAS(groups=GROUPS, **keys)
    strategy.reports["train"] = PhaseReport("train", {})
    found = aggregated(
        strategy,
        {"body": np.zeros(2), "head": np.ones(1)},
        iter(
            ClientReply(k, {ARRAYS: {"body": np.array(body)}}, {"fisher": tau}, count)
            for k, (body, tau, count) in enumerate(replies)
        ),
    )
    assert found is not None and found["head"].tolist() == [1.0]
    return [float(x) for x in found["body"]]


def test_golden_mean() -> None:
    one, two = ([1.0, 0.0], 4.0, 10.0), ([0.0, 2.0], 1.0, 30.0)
    assert mean(one, two, max_share_ratio="off") == pytest.approx([0.8, 0.4])
    # By its rows the first has a quarter: whatever its tau, it gets half.
    assert mean(one, two) == pytest.approx([0.5, 1.0])
    assert mean(one, two, fedas_weights="examples") == pytest.approx([0.25, 1.5])
    # Where all taus are 0, by examples; who has no example never counts.
    assert mean((one[0], 0.0, 10.0), (two[0], 0.0, 30.0)) == pytest.approx([0.25, 1.5])
    assert mean(one, (two[0], 1.0, 0.0)) == pytest.approx([1.0, 0.0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=4), st.floats(1e-3, 1e3))
def test_only_ratios_of_taus_matter(taus: list[float], scale: float) -> None:
    groups = [([float(k), 1.0], tau, 5.0) for k, tau in enumerate(taus)]
    scaled = [(body, tau * scale, n) for body, tau, n in groups]
    assert mean(*groups) == pytest.approx(mean(*scaled))


KEYS: dict[str, Any] = {"model": "mlp", "hidden_width": 16, "partitioner": "shards"}


def test_without_alignment_and_tau_it_is_fedper() -> None:
    off = {"alignment_epochs": 0, "fedas_weights": "examples"}
    plain = play(method="fedper", **KEYS).arrays[-1]
    assert bits(play(method="fedas", **off, **KEYS).arrays[-1]) == bits(plain)
    for name in off:
        changed = {k: v for k, v in off.items() if k != name}
        assert bits(play(method="fedas", **changed, **KEYS).arrays[-1]) != bits(plain)


@pytest.mark.parametrize("claim", [-1.0, float("nan"), 1e300, None])
def test_a_false_tau_is_not_used(claim: float | None) -> None:
    tamper = for_client(0, "hosted", set_metrics(fisher=claim))
    report = run_digits(digits(method="fedas", num_rounds=1, **KEYS), tamper=tamper)
    (rejection,) = [r for p in report.reports[0].phases for r in p.rejections]
    assert (rejection.client_id, "fisher" in rejection.reason) == (0, True)


def test_a_huge_tau_counts_as_the_median() -> None:
    tamper = for_client(0, "hosted", set_metrics(fisher=1e9))
    trace = run_digits(digits(method="fedas", num_rounds=1, **KEYS), tamper=tamper)
    assert trace.reports[0].train is not None
    assert all(row["weight"] < 0.9 for row in trace.reports[0].train.rows)


def test_sequences_are_refused() -> None:
    asked, _ = client([(1.0, 0)])
    data = replace(asked.train_data, labels=torch.zeros(1, 3).long())
    with pytest.raises(ConfigError, match="fedas: its prototypes need one class per row"):
        FedASClient(Line(), data, data)
