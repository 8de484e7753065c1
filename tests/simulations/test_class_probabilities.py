"""Class probabilities: a matrix by hand, and the command on runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsuite.data import Split
from simulations.fedal.class_probabilities import (
    Probabilities,
    class_probabilities,
    matrix_figure,
)
from simulations.fedal.final_models import FinalModels
from tests.results.made_runs import written
from tests.simulations.small_fedal import fedal_run, small_run

FIRST = ((0.8, 0.1, 0.1), (0.6, 0.2, 0.2), (0.1, 0.1, 0.8))
SECOND = ((0.2, 0.4, 0.4), (0.4, 0.36, 0.24), (0.3, 0.3, 0.4))
"""Probabilities of samples 0, 1, 2, whose classes are 0, 0, 2."""


class Known(nn.Module):
    """Gives probabilities that are known, in evaluation mode alone."""

    def __init__(self, rows: tuple[tuple[float, ...], ...]) -> None:
        super().__init__()
        self.rows = torch.tensor(rows).log() + 5

    def forward(self, features: Tensor) -> Tensor:
        assert not self.training
        return self.rows[features]


@pytest.mark.parametrize("copies", [1, 100])
def test_matrix_by_hand(copies: int) -> None:
    data = Split(torch.arange(3).repeat(copies), torch.tensor([0, 0, 2]).repeat(copies))
    models = (model for model in (Known(FIRST), Known(SECOND)))
    matrix = class_probabilities(models, data, 3)
    # Of class 0: (0.7, 0.15, 0.15) and (0.3, 0.38, 0.32); there are no samples of class 1.
    assert matrix[0] == pytest.approx([0.5, 0.265, 0.235])
    assert np.isnan(matrix[1]).all()
    assert matrix[2] == pytest.approx([0.2, 0.2, 0.6])
    found = Probabilities("fedal", 0, "fedal", 3, matrix)
    assert found.right == pytest.approx(0.55)
    axes = matrix_figure([found]).axes[0]
    texts = [float(text.get_text()) for text in axes.texts]
    assert texts == pytest.approx([0.5, 0.265, 0.235, 0.2, 0.2, 0.6], abs=0.006)


def test_a_line_of_matrices_for_each_method() -> None:
    matrix = np.full((20, 20), 0.05)
    found = [
        Probabilities("fedmd, a=1", 0, "fedmd", 3, matrix),
        Probabilities("fedal", 0, "fedal", 3, matrix),
        Probabilities("fedmd, a=2", 1, "fedmd", 3, matrix),
    ]
    figure = matrix_figure(found)
    first, second, third, _ = figure.axes
    titles = [axes.get_title().partition("\n")[0] for axes in (first, second, third)]
    assert titles == ["fedmd, a=1", "fedmd, a=2", "fedal"]
    places = [axes.get_subplotspec() for axes in (first, second, third)]
    rows_and_columns = [(p.rowspan.start, p.colspan.start) for p in places if p]
    assert rows_and_columns == [(0, 0), (0, 1), (1, 0)]
    assert not first.texts


def test_command(simulate: Any, tmp_path: Path) -> None:
    run = fedal_run(tmp_path / "a", num_rounds=1)
    small_run(tmp_path / "b", method="fedavg", seed=1)
    code, out, err = simulate("fedal.class_probabilities", tmp_path / "a", tmp_path / "b")
    assert (code, err) == (0, "")
    rows = written("class_probabilities")
    assert len(rows) == 200
    assert {(r["seed"], r["round"]) for r in rows} == {("0", "1"), ("1", "2")}
    final = FinalModels(run)
    expected = class_probabilities(final.models(), final.data.test_set(), 10)
    values = np.array([float(r["probability"]) for r in rows]).reshape(2, 10, 10)
    assert values[0] == pytest.approx(expected)
    assert values.sum(axis=2) == pytest.approx(1)
    row = rows[37]
    assert (row["true class"], row["class"]) == ("3", "7")
    assert float(row["of the true class"]) == values[0, 3, 3]
    assert f"{np.diag(expected).mean():.4g}" in out


def test_errors_are_one_line(simulate: Any, tmp_path: Path) -> None:
    small_run(tmp_path / "a", method="ditto", num_rounds=1)
    code, _, err = simulate("fedal.class_probabilities", tmp_path / "a")
    assert (code, err.count("\n")) == (1, 1)
    assert "method ditto may score clients" in err
