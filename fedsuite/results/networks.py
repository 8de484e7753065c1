"""Accuracy by network, where clients have different ones."""

from dataclasses import dataclass
from statistics import fmean

from fedsuite.results.reader import Run


@dataclass(frozen=True)
class NetworkAccuracy:
    """Plain mean accuracy (a fraction) of the clients with one network.

    Parameters
    ----------
    label
        The network, as an entry of the key ``client-models``.
    num_parameters
        Number of trainable scalars.
    num_clients
        Number of clients with the network and an accuracy.
    """

    label: str
    num_parameters: int
    num_clients: int
    accuracy: float


def accuracy_by_network(
    run: Run, server_round: int | None = None, column: str = "accuracy"
) -> tuple[NetworkAccuracy, ...]:
    """Return the accuracy per network; empty where all clients share one.

    ``server_round`` None is the last evaluated round. ``column`` names the accuracy in
    ``clients.jsonl``, such as ``whole_test_accuracy``.
    """
    labels = run.manifest.get("networks", [])
    if not labels:
        return ()
    sizes = run.manifest.get("network_parameters", [])
    networks = enumerate(run.manifest.get("client_networks", []))
    network_of = {run.named(client_id): network for client_id, network in networks}
    by_network: dict[int, list[float]] = {}
    for client, accuracy in run.client_values("evaluate", column, server_round).items():
        if client in network_of:
            by_network.setdefault(network_of[client], []).append(accuracy)
    return tuple(
        NetworkAccuracy(labels[index], sizes[index], len(accuracies), fmean(accuracies))
        for index, accuracies in sorted(by_network.items())
    )
