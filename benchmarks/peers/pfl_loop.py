"""pfl-research 0.6.0, in an environment of its own: its simulated backend, its FedAvg.

    PFL_PYTHON -m peers.pfl_loop PREPARED OUTPUT

A client's mini-batches are those of pfl's in-memory data sets: slices in a fixed order.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional

from peers.prepared import Prepared, end_round, evaluate, save_model


class Network(nn.Module):
    """The network with the loss and the metrics that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a mini-batch."""
        return functional.cross_entropy(self.network(features), labels)

    def metrics(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
        """Return the accuracy."""
        _, right = evaluate(self.network, (features, labels))
        return {"accuracy": Weighted(right, len(labels))}


class EndOfRound(TrainingProcessCallback):
    """Evaluates on all test rows where the experiment does, and ends the round.

    Parameters
    ----------
    prepared, output
        What is run, and where the rounds' lines go.
    """

    def __init__(self, prepared: Prepared, output: Path) -> None:
        self._prepared, self._output = prepared, output
        self._rows = prepared.test()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Evaluate, if it is time to, and write the line."""
        server_round = central_iteration + 1
        if self._prepared.is_evaluated(server_round):
            evaluate(model.pytorch_model.network, self._rows)
        end_round(self._output, server_round)
        return False, Metrics()


def run(prepared: Prepared, output: Path) -> None:
    """Train, and write the final parameters."""
    settings = prepared.settings
    torch.set_num_threads(settings["threads"])
    np.random.seed(settings["seed"])
    count, steps = settings["num-clients"], settings["local-steps"]
    network = Network(prepared.model())
    model = PyTorchModel(
        network,
        local_optimizer_create=functools.partial(torch.optim.SGD, fused=True),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = [Dataset(prepared.train(k), user_id=str(k)) for k in range(count)]
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", range(count)))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=settings["num-rounds"],
            evaluation_frequency=settings["num-rounds"],
            train_cohort_size=settings["clients-per-round"],
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=None if steps else settings["local-epochs"],
            local_num_steps=steps or None,
            local_learning_rate=settings["learning-rate"],
            local_batch_size=settings["batch-size"],
        ),
        callbacks=[EndOfRound(prepared, output)],
        send_metrics_to_platform=False,
    )
    save_model(output, network.network.state_dict())


if __name__ == "__main__":
    run(Prepared(Path(sys.argv[1])), Path(sys.argv[2]))
