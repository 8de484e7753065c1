"""FedAvg on Fed-TCGA-BRCA as a plain loop: what is the method, and what is luck.

    python simulations/tcga_brca/loop.py

Rows, first model, mini-batches, loss and rate are those of brca.toml. The streams of
mini-batches are the loop's own. Prints, for each seed, the final weight of the age and the
concordance on all test rows.
"""

import csv
import sys
from pathlib import Path

import torch

from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.training.loop import TrainingOptions, mini_batches
from fedsuite.training.survival import cox_loss
from fedsuite.training.survival_scores import concordance

HERE = Path(__file__).parent
SEEDS = range(42, 62)


def one(seed: int) -> tuple[float, float]:
    """Return the weight of the age, and the concordance, after the last round."""
    experiment = Experiment.load(HERE / "brca.toml", {"seed": seed})
    data = federated_data(experiment)
    options = TrainingOptions.of(experiment.values)
    clients = [data.client(k) for k in range(data.num_clients)]
    weights = next(network_model(experiment, data).parameters()).detach().flatten()
    for server_round in range(int(experiment["num-rounds"])):
        total = torch.zeros_like(weights)
        for k, client in enumerate(clients):
            features, labels = client.train.features.flatten(1), client.train.labels
            stream = torch.Generator().manual_seed(1000 * seed + 10 * server_round + k)
            own = weights.clone().requires_grad_()
            for rows in mini_batches(len(labels), options, stream):
                loss = cox_loss(features[rows] @ own, labels[rows])
                (gradient,) = torch.autograd.grad(loss, own)
                with torch.no_grad():
                    own -= options.learning_rate * gradient
            total += len(labels) * own.detach()
        weights = total / sum(len(client.train) for client in clients)
    test = [client.test for client in clients]
    risks = torch.cat([part.features.flatten(1) for part in test]) @ weights
    times, events = torch.cat([part.labels for part in test]).double().numpy().T
    return float(weights[0]), concordance(times, events, risks.double().numpy())


if __name__ == "__main__":
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("seed", "weight of the age", "concordance"))
    for seed in SEEDS:
        age, score = one(seed)
        out.writerow((seed, f"{age:.4f}", f"{score:.4f}"))
