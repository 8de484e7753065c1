"""Newton's method: the pooled fit of lifelines, by sums of curvature alone."""

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


def test_large_models_are_refused() -> None:
    arrays = {"weight": np.zeros((1, 2001), np.float32)}
    with pytest.raises(ConfigError, match="2,001 parameters"):
        Newton().train_exchange(arrays, [0])
