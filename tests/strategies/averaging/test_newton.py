"""Newton's method: the pooled fit of lifelines, by sums of curvature alone."""

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from lifelines import CoxPHFitter
from lifelines.datasets import load_rossi
from torch import nn

from fedsuite.clients.averaging.newton import NewtonClient
from fedsuite.core.errors import ConfigError
from fedsuite.data import Split
from fedsuite.messages.array_records import to_record
from fedsuite.method import CURVATURE, GRADIENT, HESSIAN, ClientReply
from fedsuite.strategies.averaging.newton import Newton, newton_step
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions
from tests.helpers import TamperingGrid, run

COLUMNS = ["fin", "age", "race", "wexp", "mar", "paro", "prio"]
SITES = 3


def recidivists() -> pd.DataFrame:
    """The data set of lifelines, dealt to sites by the number of earlier convictions."""
    table = load_rossi()
    return table.assign(site=np.digitize(table["prio"], [2, 4]))


def cox_app(table: pd.DataFrame) -> ClientApp:
    def client_fn(context: Context, client_id: int) -> NewtonClient:
        own = table[table["site"] == client_id]
        rows = Split(
            torch.tensor(own[COLUMNS].to_numpy(), dtype=torch.float32),
            torch.tensor(own[["week", "arrest"]].to_numpy(), dtype=torch.float32),
        )
        torch.manual_seed(0)
        options = TrainingOptions(task="survival")
        model = nn.Linear(len(COLUMNS), 1, bias=False)
        return NewtonClient(model, rows, rows, training=options, client_id=client_id)

    return make_client_app(client_fn, list(NewtonClient.ACTIONS))


def test_step_by_hand() -> None:
    """The minimum of x^2 + 2 y^2 - 2 x - 8 y is (1, 2); a flat direction stays."""
    step = newton_step(np.array([-2.0, -8.0, 0.0]), np.diag([2.0, 4.0, 0.0]))
    assert step == pytest.approx([1.0, 2.0, 0.0])


def test_fit_is_that_of_lifelines_stratified_by_site() -> None:
    table = recidivists()
    fitted = CoxPHFitter().fit(
        table[[*COLUMNS, "week", "arrest", "site"]],
        "week",
        "arrest",
        strata=["site"],
        fit_options={"precision": 1e-12},
    )
    start = {"weight": np.zeros((1, len(COLUMNS)), np.float32)}
    trace = run(Newton(), TamperingGrid(cox_app(table), SITES), 8, to_record(start))
    found = trace.arrays[-1]["weight"][0]
    assert found == pytest.approx(fitted.params_[COLUMNS].to_numpy(), abs=1e-6)
    # Sites' own fits are other numbers: the sums make it the pooled one.
    pooled = CoxPHFitter().fit(table[[*COLUMNS, "week", "arrest"]], "week", "arrest")
    assert np.abs(found - pooled.params_[COLUMNS].to_numpy()).max() > 1e-3


def answer(client_id: int, gradient: float, loss: float) -> ClientReply:
    """Return the reply of a client whose loss has the Hessian 2."""
    sent = {GRADIENT: np.array([gradient]), HESSIAN: np.array([[2.0]])}
    return ClientReply(client_id, {CURVATURE: sent}, {"loss": loss}, 1.0)


def test_a_step_that_raised_the_same_clients_losses_is_halved() -> None:
    """Losses of other clients say nothing of the step."""
    start = {"weight": np.zeros((1, 1), np.float32)}
    for client_id, weight in ((0, 1.0), (1, 4.0)):
        strategy = Newton()
        moved = strategy.combine(start, [answer(0, -4.0, 1.0)])
        assert moved is not None and moved["weight"] == 2.0
        again = strategy.combine(moved, [answer(client_id, -4.0, 3.0)])
        assert again is not None and again["weight"] == weight


def test_weight_decay_counts_once_for_each_row() -> None:
    own = recidivists()[:50]
    rows = Split(
        torch.tensor(own[COLUMNS].to_numpy(), dtype=torch.float32),
        torch.tensor(own[["week", "arrest"]].to_numpy(), dtype=torch.float32),
    )
    model = nn.Linear(len(COLUMNS), 1, bias=False)
    plain, decayed = (
        NewtonClient(
            model, rows, rows, training=TrainingOptions(task="survival", weight_decay=decay)
        ).sums()
        for decay in (0.0, 0.1)
    )
    weight = model.weight.detach().double().flatten()
    size = len(COLUMNS)
    more = (2.5 * weight.square().sum(), 5.0 * weight, 5.0 * torch.eye(size).double())
    for one, other, expected in zip(plain, decayed, more, strict=True):
        torch.testing.assert_close(other - one, expected)


def test_a_client_without_rows_adds_nothing() -> None:
    nothing = Split(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    options = TrainingOptions()
    client = NewtonClient(nn.Linear(3, 2), nothing, nothing, training=options)
    value, gradient, curvature = client.sums()
    assert not value and not gradient.any() and not curvature.any()
    assert (gradient.shape, curvature.shape) == ((8,), (8, 8))


class Loop(nn.Module):
    """A matrix of two names around a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.fixed = nn.Linear(3, 3).requires_grad_(False)
        self.last = nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(torch.tanh(self.fixed(self.first(inputs))))
        return outputs


def test_copies_of_a_tied_parameter_move_by_its_own_step_and_frozen_ones_stay() -> None:
    torch.manual_seed(0)
    model, options = Loop(), TrainingOptions(weight_decay=0.5)
    rows = Split(torch.randn(20, 3), torch.arange(20) % 3)
    client = NewtonClient(model, rows, rows, training=options)
    _, gradient, curvature = client.sums()
    step = newton_step(gradient.numpy(), curvature.numpy())
    first, fixed, last = step[:9], step[9:21], step[21:30]
    np.testing.assert_allclose(first, last, rtol=1e-8)
    np.testing.assert_allclose(fixed, 0, atol=1e-12)
    # The same step, without copies or frozen parameters, worked out by itself.
    double = deepcopy(model).double()
    bias, features = double.last.bias, rows.features.double()

    def loss(free: torch.Tensor) -> torch.Tensor:
        weight, moved_bias = free[:9].view(3, 3), free[9:]
        hidden = torch.tanh(double.fixed(features @ weight.T))
        scores = hidden @ weight.T + moved_bias
        plain = nn.functional.cross_entropy(scores, rows.labels, reduction="sum")
        return plain + 20 * 0.25 * free.square().sum()

    free = torch.cat([double.first.weight.detach().flatten(), bias.detach()])
    slope = torch.func.grad(loss)(free).detach().numpy()
    bend = torch.func.hessian(loss)(free).detach().numpy()
    expected = newton_step(slope, bend)
    np.testing.assert_allclose(np.concatenate([first, step[30:]]), expected, rtol=1e-6)


def test_large_models_are_refused() -> None:
    arrays = {"weight": np.zeros((1, 2001), np.float32)}
    with pytest.raises(ConfigError, match="2,001 parameters"):
        Newton().train_exchange(arrays, [0])
