"""The discriminator's probe: clients alike, clients apart, and the command on runs."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsuite.analyses.discriminator_probe import probe
from tests.analyses.small_fedal import fedal_run
from tests.analyses.test_commands import written


def outputs(apart: float) -> torch.Tensor:
    """Return logits of three clients on 200 rows, with a bias of each client's own."""
    drawn = torch.randn(200, 5, generator=torch.Generator().manual_seed(1))
    return torch.stack([drawn + apart * torch.eye(5)[client] for client in range(3)])


def test_clients_that_say_the_same_cannot_be_told_apart() -> None:
    found = probe(outputs(0.0), 0)
    assert found.cross_entropy == pytest.approx(math.log(3), abs=0.01)
    assert found.accuracy == pytest.approx(1 / 3, abs=0.05)


def test_clients_that_differ_are_known() -> None:
    near, far = probe(outputs(3.0), 0), probe(outputs(20.0), 0)
    assert far.cross_entropy < near.cross_entropy < math.log(3) - 0.1
    assert far.accuracy > 0.95


def test_held_out_rows_train_nothing() -> None:
    """Labels that only memory could hold: no probe is below guessing by them."""
    noise = torch.randn(4, 60, 5, generator=torch.Generator().manual_seed(2))
    assert probe(noise, 0).cross_entropy > math.log(4) - 0.02


def test_command(analyse: Any, tmp_path: Path) -> None:
    fedal_run(tmp_path / "a", num_rounds=1)
    code, _, err = analyse("discriminator-probe", tmp_path / "a")
    assert (code, err) == (0, "")
    (row,) = written("discriminator_probe")
    assert 0 < float(row["cross-entropy"]) < 2 * math.log(4)
    assert float(row["log clients"]) == pytest.approx(math.log(4))


def test_runs_without_public_rows_are_refused(analyse: Any, tmp_path: Path) -> None:
    from tests.analyses.small_fedal import small_run

    small_run(tmp_path / "a", method="fedavg", num_rounds=1)
    code, _, err = analyse("discriminator-probe", tmp_path / "a")
    assert code == 1
    assert "it has 0 public rows, and the probe needs 20" in err
