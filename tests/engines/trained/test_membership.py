"""Scores of rows: log odds by hand, whose rows they are, and a site's reply."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsuite
from fedsuite.data import Split
from fedsuite.engines.api import load_run
from fedsuite.engines.trained.membership import log_odds, row_scores, why_no_membership
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment

SMALL: dict[str, Any] = {
    "model": "linear",
    "num-clients": 3,
    "num-rounds": 1,
    "client-validation-fraction": 0.5,
    "report": False,
}


def test_log_odds_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [2.0, 2.0], [700.0, -700.0]])
    scores = log_odds(nn.Identity(), Split(logits, torch.tensor([1, 0, 0])))
    assert scores.tolist() == pytest.approx([math.log(3.0), 0.0, 1400.0])
    three = Split(torch.zeros(1, 3), torch.tensor([2]))
    assert log_odds(nn.Identity(), three).tolist() == pytest.approx([-math.log(2.0)])
    assert log_odds(nn.Identity(), Split(logits[:0], torch.tensor([]))).tolist() == []


def test_rows_are_numbered_alike_and_replies_are_of_their_own_site(tmp_path: Path) -> None:
    held, scored = [], []
    for seed in (0, 1):
        values = {**SMALL, "seed": seed, "output-dir": str(tmp_path)}
        run = fedsuite.run(values, run_name=str(seed))
        scored.append(row_scores(load_run(run.path)))
        held.append(federated_data(Experiment.from_values(values)))
    for data, rows in zip(held, scored, strict=True):
        assert sorted(rows.rows.tolist()) == list(range(len(rows.rows)))
        inside = np.concatenate(list(data.partition.train))
        assert set(rows.rows[rows.members].tolist()) == set(inside.tolist())
        assert 0.45 < rows.members.mean() < 0.55
        # One more training makes a site surer of its own rows, and changes the scores.
        more = rows.of_reply - rows.of_model
        assert more[rows.members].mean() > 0.0
        assert np.isfinite(more).all()
    whole = [rows.rows.argsort() for rows in scored]
    assert (scored[0].members[whole[0]] != scored[1].members[whole[1]]).any()


def test_replies_that_are_no_models_of_all_have_no_scores(tmp_path: Path) -> None:
    values = {**SMALL, "method": "scaffold", "output-dir": str(tmp_path)}
    rows = row_scores(load_run(fedsuite.run(values).path))
    assert np.isfinite(rows.of_model).all()
    assert np.isnan(rows.of_reply).all()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"sites": "a, b"}, "not ours to train on by halves"),
        ({"method": "standalone"}, "without one model for all"),
        ({}, ""),
    ],
)
def test_what_has_no_membership_test(keys: dict[str, Any], reason: str) -> None:
    told = why_no_membership(Experiment.from_values(keys))
    assert reason in told
    assert bool(reason) == bool(told)
