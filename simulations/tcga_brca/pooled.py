"""Newton's federated fit beside lifelines' fit of all rows in one place, by region.

    python simulations/tcga_brca/pooled.py

Prints the log partial likelihood of the training rows under both. The table's columns are
collinear, and lifelines cannot fit them; it gets a largest subset that is not.
"""

import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from lifelines import CoxPHFitter
from scipy.linalg import qr

from fedsuite.core.keys import Value
from fedsuite.core.reading import read_arrays
from fedsuite.data import FederatedData
from fedsuite.engines.local import run_local
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.training.survival import cox_loss

HERE = Path(__file__).parent
KEYS: dict[str, Value] = {
    "method": "newton",
    "scaling": "federated",
    "num-rounds": 10,
    "local-steps": 0,
    "evaluate-every": 10,
    "report": False,
}


def likelihood(data: FederatedData, coefficients: np.ndarray) -> float:
    """Return the log partial likelihood, each region with risk sets of its own."""
    total = 0.0
    for k in range(data.num_clients):
        rows = data.client(k).train
        risks = rows.features.double() @ torch.from_numpy(coefficients)
        total -= float(cox_loss(risks, rows.labels.double())) * len(rows)
    return total


def newton(experiment: Experiment) -> np.ndarray:
    """Return the coefficients of a federated run."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run_local(experiment, Path(folder) / "run")
        arrays, _ = read_arrays(Path(folder) / "run" / "model.safetensors")
    return np.asarray(arrays["1.weight"][0], float)


def pooled(data: FederatedData) -> np.ndarray:
    """Return lifelines' coefficients, 0 for columns that the others determine."""
    tables = []
    for k in range(data.num_clients):
        rows = data.client(k).train
        table = pd.DataFrame(rows.features.double().numpy())
        times, events = rows.labels.double().numpy().T
        tables.append(table.assign(time=times, event=events, region=k))
    table = pd.concat(tables, ignore_index=True)
    inputs = list(range(data.input_shape[0]))
    within = table[inputs] - table.groupby("region")[inputs].transform("mean")
    triangle, order = qr(within.to_numpy(), mode="r", pivoting=True)
    sizes = np.abs(np.diag(triangle))
    kept = sorted(int(c) for c in order[: len(sizes)][sizes > 1e-8 * sizes[0]])
    fitter = CoxPHFitter()
    options = {"precision": 1e-12, "max_steps": 500}
    columns = [*kept, "time", "event", "region"]
    fitter.fit(table[columns], "time", "event", strata=["region"], fit_options=options)
    coefficients = np.zeros(len(inputs))
    coefficients[kept] = fitter.params_.to_numpy()
    return coefficients


if __name__ == "__main__":
    experiment = Experiment.load(HERE / "brca.toml", KEYS)
    data = federated_data(experiment)
    for name, coefficients in (("newton", newton(experiment)), ("lifelines", pooled(data))):
        print(f"{name}: {likelihood(data, coefficients):.6f}")
