"""Gradient variances: terms of two linear clients by hand, and what real runs record."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.clients.distillation.fedal import FedALClient
from fedsuite.data import Split
from fedsuite.strategies.distillation.discriminator import Discriminator
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.loop import TrainingOptions
from simulations.fedal.final_models import FinalModels
from simulations.fedal.gradient_variance import (
    Row,
    drawn_batches,
    gradient,
    gradient_variance,
    variance_figure,
)
from simulations.fedal.loss_terms import NAMES, Answers, NextPhase, Term, client_terms
from tests.results.made_runs import written
from tests.simulations.small_fedal import fedal_run, small_run

ONE_BY_ONE = [torch.tensor([0]), torch.tensor([1])]
SETTINGS = {
    "server-round": 3,
    "public-batch-size": 1,
    "distillation-temperature": 2.0,
    "less-forgetting": "both",
    "less-forgetting-from": 1,
    "distillation-target": "others",
    "distillation-loss": "kl",
}

BY_HAND = {
    # p - y is (-0.5, 0.5) on a row of 1; 0 on the row of 0.
    "labels": 2 * 0.25**2,
    # The reference has p (3/4, 1/4) at temperature 2: (p - q) / 2 is (-1/8, 1/8).
    "local less-forgetting": 2 * 0.0625**2,
    # On a row of 2 the others have (4/5, 1/5): 2 (p - q) / 2 is (-0.3, 0.3).
    "distillation": 2 * 0.15**2,
    # dU/dp is ((1 - h) 1, 0) for label 0, (-h, 0) for label 1, h the sigmoid of 1/2;
    # diag(p) - p p' is 1/4 (1, -1; -1, 1).
    "adversarial": {0: 2 * (0.3775407 / 4) ** 2, 1: 2 * (0.6224593 / 4) ** 2},
    # On the row of 2 the reference has (9/10, 1/10): 2 (p - q) / 2 is (-0.4, 0.4).
    "transfer less-forgetting": 2 * 0.2**2,
}
"""Variance over batches of one row: of two gradients, half their distance, squared."""


def linear(first: float = 0.0) -> nn.Module:
    """Return logits (w x, 0) of one input x."""
    layer = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[first], [0.0]]))
    return layer


def client(client_id: int, rows: int = 2) -> FedALClient:
    train = Split(torch.tensor([[1.0], [0.0]])[:rows], torch.tensor([0, 1])[:rows])
    return FedALClient(
        linear(),
        train,
        train,
        training=TrainingOptions(batch_size=1),
        client_id=client_id,
        public=torch.tensor([[2.0], [0.0]]),
    )


def discriminator(weight: float) -> Discriminator:
    """Return one that sees w p_1 for label 0, and 0 for label 1, at temperature 1."""
    made = Discriminator(2, 2, widths=(), temperature=1.0)
    with torch.no_grad():
        made.network[0].weight.copy_(torch.tensor([[weight, 0.0], [0.0, 0.0]]))
        made.network[0].bias.zero_()
    return made


def answers(**changes: Any) -> Answers:
    """Return answers to client 0, of logits 0, and client 1, whose are (log 16, 0)."""
    logits = {k: np.zeros((2, 2), np.float32) for k in (0, 1)}
    logits[1][0, 0] = np.log(16)
    values: dict[str, Any] = {
        "config": SETTINGS,
        "logits": logits,
        "mean": (logits[0] + logits[1]) / 2,
        "discriminator": discriminator(1.0),
        "labels": {0: 0, 1: 1},
    }
    return Answers(**values | changes)


def variances(given: Answers, rows: int = 2) -> dict[str, float]:
    asked = client(0, rows)
    asked.model.eval()
    terms = client_terms(asked, linear(float(np.log(9))), given)
    return {
        term.name: gradient_variance(term, ONE_BY_ONE[: term.num_rows]) for term in terms
    }


@pytest.mark.parametrize("label", [0, 1])
def test_terms_by_hand(label: int) -> None:
    found = variances(answers(labels={0: label, 1: 1 - label}))
    assert tuple(found) == NAMES
    # The discriminator sees the same p on both rows.
    assert found.pop("discriminator") == 0
    expected = {**BY_HAND, "adversarial": BY_HAND["adversarial"][label]}  # type: ignore[index]
    assert found == pytest.approx(expected, rel=1e-5)


def test_discriminator_by_hand() -> None:
    """With h (1/2, 1/2) the gradient is (h - y) p', and p is (4/5, 1/5) or (1/2, 1/2)."""
    logits = {0: np.array([[np.log(4), 0], [0, 0]], np.float32)}
    given = answers(discriminator=discriminator(0.0), logits=logits)
    assert variances(given)["discriminator"] == pytest.approx(0.5 * 2 * 0.15**2)


def test_terms_that_a_method_lacks() -> None:
    plain = {**SETTINGS, "less-forgetting": "none"}
    lacking = answers(config=plain, discriminator=None, labels={})
    assert list(variances(lacking)) == ["labels", "distillation"]
    later = {**SETTINGS, "less-forgetting-from": 4}
    assert list(variances(answers(config=later))) == [NAMES[0], *NAMES[2:4], NAMES[5]]
    local = {**SETTINGS, "less-forgetting": "local"}
    assert "transfer less-forgetting" not in variances(answers(config=local))
    unlabelled = variances(answers(labels={1: 0}))
    assert not {"adversarial", "discriminator"} & set(unlabelled)
    alone = variances(answers(logits={0: np.zeros((2, 2), np.float32)}))
    assert "distillation" not in alone
    assert set(variances(answers(), rows=0)) == set(NAMES[2:])


def squares(num_rows: int, batch_size: int = 0, name: str = "labels") -> Term:
    """Return a term whose gradient on row i is i."""
    weight = nn.Parameter(torch.ones(1))
    features = torch.arange(num_rows, dtype=torch.float32)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        assert len(rows) <= 128
        return (weight * features[rows]).mean()

    return Term(name, loss, [weight], num_rows, batch_size)


def test_gradients_in_parts_are_means_over_rows() -> None:
    assert gradient(squares(301), torch.arange(301)).tolist() == pytest.approx([150])
    term = squares(4)
    batches = [torch.tensor([0, 1]), torch.tensor([3, 0])]
    assert gradient_variance(term, batches) == pytest.approx((1**2 + 0**2) / 2)


def test_batches_are_drawn_as_those_of_a_run() -> None:
    def drawn(
        name: str, client_id: int, seed: int = 0, count: int = 3, size: int = 4
    ) -> Any:
        term = squares(9, size, name)
        return [b.tolist() for b in drawn_batches(term, count, seed, 2, client_id)]

    own = drawn("labels", 0)
    assert len(own) == 3
    assert all(len(set(batch)) == 4 for batch in own)
    assert own == drawn("local less-forgetting", 0)
    assert own != drawn("labels", 1)
    assert own != drawn("labels", 0, seed=1)
    assert own == drawn("labels", 0, count=5)[:3]
    public = [drawn(name, k) for name in NAMES[2:] for k in (0, 1)]
    assert all(batches == public[0] != own for batches in public)
    assert sorted(drawn("labels", 0, size=0)[0]) == list(range(9))


def test_the_point_and_the_terms_are_those_of_the_next_round(tmp_path: Path) -> None:
    """Of a run that goes on for one round more, over all public rows."""
    keys = {
        **{"transfer_steps": 1, "public_batch_size": 0, "score_trained": True},
        **{"discriminator_learning_rate": 0.0, "num_clients": 3},
        "adversarial_weight": 3.0,
    }
    run = fedal_run(tmp_path / "a", **keys)
    longer = fedal_run(tmp_path / "b", num_rounds=3, **keys)
    final = FinalModels(run)
    phase = NextPhase(final)
    trained = longer.client_values("train", "trained_whole_test_loss", 3)
    transfer = longer.client_values("train", "transfer_loss", 3)
    discriminator_losses = []
    for asked, terms in phase.clients():
        losses = {
            term.name: float(term.loss(torch.arange(term.num_rows)).detach())
            for term in terms
        }
        assert not asked.model.training
        loss, _ = evaluate_model(asked.model, final.data.test_set())
        assert loss == trained[asked.client_id]
        both = losses["distillation"] + 3 * losses["adversarial"]
        assert both == pytest.approx(transfer[asked.client_id], rel=1e-4)
        discriminator_losses.append(losses["discriminator"])
    recorded = longer.rounds[2]["discriminator_loss"]
    assert np.mean(discriminator_losses) == pytest.approx(recorded, rel=1e-5)


def test_reference_and_discriminator_are_the_checkpoints(tmp_path: Path) -> None:
    run = fedal_run(tmp_path / "a", discriminator_learning_rate=0.1)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    final = FinalModels(run)
    private = final.data.client(1).train
    models = list(final.models())
    phase = NextPhase(final)
    for asked, terms in phase.clients():
        named = {term.name: term for term in terms}
        if asked.client_id == 1:
            rows = torch.arange(len(private))
            with torch.no_grad():
                both = (asked.model, models[1])
                p, q = (model(private.features).log_softmax(1) for model in both)
                expected = float((q.exp() * (q - p)).sum(dim=1).mean())
            assert expected > 0
            found = float(named["local less-forgetting"].loss(rows).detach())
            assert found == pytest.approx(expected, rel=1e-3)
        weights = final.checkpoint.states["method"]["arrays"]["network/0.weight"]
        assert (named["discriminator"].parameters[0].detach().numpy() == weights).all()
    after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert after == before


def test_command(simulate: Any, tmp_path: Path) -> None:
    fedal_run(tmp_path / "a", num_rounds=1)
    fedal_run(tmp_path / "b")
    fedal_run(tmp_path / "c", method="fedmd")
    folders = [tmp_path / name for name in "abc"]
    code, out, err = simulate("fedal.gradient_variance", *folders, "--batches", 3)
    assert (code, err) == (0, "")
    assert "Mean over 3 mini-batches" in out
    rows = written("gradient_variance")
    assert [r["term"] for r in rows] == [*NAMES, *NAMES, "labels", "distillation"]
    assert [r["round"] for r in rows] == [*6 * "1", *8 * "2"]
    assert {r["clients"] for r in rows} == {"4"}
    assert all(0 < float(r["mean"]) < float(r["largest"]) for r in rows)
    again = simulate("fedal.gradient_variance", *folders, "--batches", 3, "--overwrite")
    assert again[0] == 0
    assert written("gradient_variance") == rows
    small_run(tmp_path / "d", method="standalone", num_rounds=1)
    code, _, err = simulate("fedal.gradient_variance", tmp_path / "d", "--overwrite")
    assert (code, err.count("\n")) == (1, 1)
    assert "method standalone has none of FedAL's terms" in err


def test_figure_joins_rounds_and_means_seeds() -> None:
    rows = [
        Row("fedal", "0", 10, "labels", 4, 2.0, 5.0),
        Row("fedal", "1", 10, "labels", 4, 4.0, 7.0),
        Row("fedal", "0", 5, "labels", 4, 1.0, 3.0),
        Row("fedal", "0", 5, "adversarial", 4, 0.5, 0.6),
    ]
    first, second = variance_figure(rows).axes
    assert (first.get_title(), second.get_title()) == ("labels", "adversarial")
    mean, largest = first.get_lines()
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([5, 10], [1, 3])
    assert list(largest.get_ydata()) == [3, 6]
