"""FedSGD is one full-batch step of FedAvg, and a step along the mean gradient."""

import numpy as np
import pytest

from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.models.arrays import model_arrays
from fedsuite.running.worker import Worker
from fedsuite.strategies.averaging.fedsgd import FedSGD
from fedsuite.training.evaluation import probe_model
from fedsuite.training.loop import (
    TrainingOptions,
)
from fedsuite.training.store import MemoryStore
from tests.helpers import (
    MatrixSGDClient,
    TamperingGrid,
    digits_experiment,
    final_bits,
    matrix_app,
    run,
    run_digits,
)


def test_equals_fedavg_with_one_full_batch_step() -> None:
    one_step = final_bits(method="fedsgd")
    assert one_step == final_bits(local_steps=1, batch_size=0)
    assert one_step != final_bits()


def test_client_ignores_epochs_steps_and_batch_size() -> None:
    training = TrainingOptions(local_epochs=5, batch_size=1, learning_rate=0.5)
    app = matrix_app(MatrixSGDClient, training=training)
    trace = run(FedSGD(), TamperingGrid(app, 3))
    assert trace.weights == [1.125]
    assert [row["num_steps"] for row in trace.reports[0].train.rows] == [1, 1, 1]


def test_is_a_step_along_the_mean_gradient() -> None:
    """w - eta sum_k n_k / n grad F_k(w), gradients from the probe."""
    options = {"method": "fedsgd", "num_rounds": 1, "learning_rate": 0.25}
    options |= {"partitioner": "dirichlet", "dirichlet_alpha": 0.3, "seed": 4}
    experiment = digits_experiment(**options)
    data = federated_data(experiment)
    model = experiment_model(experiment, data)
    expected = {n: a.astype(np.float64) for n, a in model_arrays(model).items()}
    sizes = [len(data.client(k).train) for k in range(4)]
    assert len(set(sizes)) > 1
    for k, size in enumerate(sizes):
        for name, gradient in probe_model(model, data.client(k).train)[1].items():
            expected[name] -= 0.25 * size / sum(sizes) * gradient
    [found] = run_digits(experiment).arrays
    for name, array in found.items():
        assert array == pytest.approx(expected[name], abs=1e-6)
    assert Worker(experiment, MemoryStore()).client(None, 0).training.batch_size == 0  # type: ignore[arg-type]
