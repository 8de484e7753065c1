"""Validation on the server: scores by hand, and how a strategy comes by them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.data import Split
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.models.arrays import model_arrays
from fedsuite.models.evaluation_mode import EVALUATION_BATCH
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts, server_parts, server_validation
from fedsuite.running.server_validation import ServerValidation
from fedsuite.strategies import FedAvg
from tests.helpers import SOME_GROUPS, digits_experiment

LABELS = torch.tensor([0, 1, 1, 1, 0])


def one_input(values=(1.0, -1.0, -1.0, 1.0, 1.0)):
    """Logits (w x, 0) of one input x; right where the sign of w x goes with the label."""
    features = torch.tensor(values).reshape(-1, 1)
    return ServerValidation(nn.Linear(1, 2), Split(features, LABELS[: len(values)]))


def weights(w):
    return {
        "weight": np.array([[w], [0.0]], np.float32),
        "bias": np.zeros(2, np.float32),
    }


def test_by_hand():
    validation = one_input()
    right, wrong = math.log1p(math.exp(-2)), math.log1p(math.exp(2))
    losses = [right, right, right, wrong, right]
    assert validation.accuracy(weights(2.0)) == pytest.approx(0.8)
    assert validation.loss(weights(2.0)) == pytest.approx(sum(losses) / 5)
    assert validation.accuracy(weights(-2.0)) == pytest.approx(0.2)
    assert validation.loss(weights(0.0)) == pytest.approx(math.log(2))
    by_batch = validation.batch_losses(weights(2.0), 2)
    assert by_batch == pytest.approx([right, (right + wrong) / 2, right])
    assert validation.batch_losses(weights(2.0), 9) == pytest.approx([sum(losses) / 5])


def test_a_score_leaves_nothing_for_the_next():
    validation = one_input()
    before = validation.loss(weights(1.5))
    validation.batch_losses(weights(-3.0), 2)
    assert validation.loss(weights(1.5)) == before


def test_models_are_scored_in_evaluation_mode():
    """In training mode a normalised batch would hide the scale of its inputs."""
    network = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))
    data = Split(torch.tensor([[5.0], [7.0], [-6.0]]), torch.tensor([0, 0, 1]))
    validation = ServerValidation(network, data)
    arrays = model_arrays(network) | {
        "1.weight": np.array([[1.0], [0.0]], np.float32),
        "1.bias": np.zeros(2, np.float32),
    }
    expected = [math.log1p(math.exp(-x)) for x in (5, 7, 6)]
    assert validation.batch_losses(arrays, 1) == pytest.approx(expected, rel=1e-3)
    assert validation.loss(arrays) == pytest.approx(sum(expected) / 3, rel=1e-3)
    after = network.state_dict()
    assert after["0.running_mean"] == 0 and after["0.num_batches_tracked"] == 0


def test_more_rows_than_a_forward_pass_takes():
    count = EVALUATION_BATCH + 3
    features = torch.linspace(-1, 1, count).reshape(-1, 1)
    data = Split(features, torch.zeros(count, dtype=torch.int64))
    validation = ServerValidation(nn.Linear(1, 2), data)
    losses = validation.batch_losses(weights(1.0), 100)
    assert len(losses) == math.ceil(count / 100)
    sizes = np.full(len(losses), 100)
    sizes[-1] = count % 100
    mean = np.average(losses, weights=sizes)
    assert validation.loss(weights(1.0)) == pytest.approx(mean, rel=1e-6)
    assert losses == sorted(losses, reverse=True)  # the rows' own order


def test_no_rows():
    with pytest.raises(ValueError, match="server-validation-fraction above 0"):
        one_input(())


class TestStrategy:
    @pytest.fixture(autouse=True)
    def validating(self, monkeypatch):
        """FedAvg as a method that validates on the server."""
        plain = FedAvg.__init__

        def init(self, *, validation, **options):
            plain(self, **options)
            self.validation = validation

        monkeypatch.setattr(FedAvg, "PARTS", frozenset({"validation"}))
        monkeypatch.setattr(FedAvg, "__init__", init)

    def parts(self, **changes):
        experiment = digits_experiment(method="fedavg", **changes)
        data = federated_data(experiment)
        return experiment, data, experiment_model(experiment, data)

    def test_gets_rows_that_no_client_holds(self):
        experiment, data, model = self.parts(server_validation_fraction=0.25)
        before = model_arrays(model)
        validation = server_validation(experiment, data, model)
        strategy = build_strategy(experiment, ServerParts(SOME_GROUPS, validation))
        zeros = {name: np.zeros_like(array) for name, array in before.items()}
        share = (data.validation_set().labels == 0).float().mean()
        assert strategy.validation.accuracy(zeros) == pytest.approx(float(share))
        assert strategy.validation.loss(zeros) == pytest.approx(math.log(10))
        # The model that the run starts from is not the one that is scored.
        after = model_arrays(model)
        assert all(np.array_equal(before[name], after[name]) for name in before)

    def test_without_rows_is_refused(self):
        with pytest.raises(ConfigError, match="method fedavg validates on the server: set"):
            server_validation(*self.parts())


def test_other_methods_get_none():
    experiment = digits_experiment(server_validation_fraction=0.25)
    data = federated_data(experiment)
    model = experiment_model(experiment, data)
    assert server_parts(experiment, data, model).validation is None
