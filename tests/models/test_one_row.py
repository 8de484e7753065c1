"""Networks that cannot train on one row are found, and stay as they were."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsuite.models.one_row import one_row_failure


class OwnStatistics(nn.Module):
    """Normalises by a variance over n - 1 rows, which one row does not have."""

    def __init__(self, keeps: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.keeps = keeps
        self.register_buffer("variance", torch.ones(3))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.layer(inputs)
        if not self.keeps:
            return hidden / (hidden.var(0) + 1e-5).sqrt()
        outputs = hidden / self.variance.clone()
        with torch.no_grad():
            self.variance.lerp_(hidden.var(0), 0.1)
        return outputs


class Masked(nn.Module):
    """Has outputs of minus infinity, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.layer(inputs), torch.full((len(inputs), 1), -torch.inf)], 1)


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), *layers, nn.Flatten())


FAILING: dict[str, nn.Module] = {
    "BatchNorm1d": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
    "without statistics": nn.BatchNorm1d(4, track_running_stats=False),
    "BatchNorm2d at 1x1": images(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)),
    "BatchNorm3d": nn.Sequential(nn.Unflatten(1, (4, 1, 1, 1)), nn.BatchNorm3d(4)),
    "SyncBatchNorm": nn.SyncBatchNorm(4),
    "one channel a group": images(nn.Conv2d(1, 2, 2), nn.GroupNorm(2, 2)),
    "own": OwnStatistics(),
    "own, in a buffer": OwnStatistics(keeps=True),
}

WORKING: dict[str, nn.Module] = {
    "dense": nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
    "BatchNorm2d at 2x2": images(nn.BatchNorm2d(1)),
    "LayerNorm": nn.LayerNorm(4),
    "dropout": nn.Dropout(0.5),
    "infinite": Masked(),
    # It takes no mini-batch at all.
    "InstanceNorm2d at 1x1": images(nn.Conv2d(1, 2, 2), nn.InstanceNorm2d(2)),
    "other inputs": nn.Linear(7, 2),
}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", FAILING)
def test_what_needs_two_rows_is_found(name: str, count: int) -> None:
    rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    assert one_row_failure(FAILING[name].train(), rows)


@pytest.mark.parametrize("name", WORKING)
def test_what_trains_on_one_row_or_on_none_is_not(name: str) -> None:
    assert one_row_failure(WORKING[name], torch.rand(3, 4)) == ""


def test_the_reason_is_torchs_own_in_one_line() -> None:
    reason = one_row_failure(nn.BatchNorm1d(4), torch.rand(2, 4))
    assert reason.startswith("Expected more than 1 value per channel when training")
    assert "\n" not in reason


@pytest.mark.parametrize("training", [True, False])
def test_network_and_random_streams_stay_as_they_were(training: bool) -> None:
    model = nn.Sequential(
        nn.Dropout(0.5), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
    )
    model.train(training)
    model[0].eval()
    arrays = {name: array.clone() for name, array in model.state_dict().items()}
    drawn = torch.get_rng_state()
    assert one_row_failure(model, torch.ones(3, 4))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [m.training for m in model] == [False, *[training] * 3]
    now: dict[str, Any] = model.state_dict()
    assert all(torch.equal(now[name], array) for name, array in arrays.items())
