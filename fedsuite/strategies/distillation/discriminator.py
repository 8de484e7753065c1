"""FedAL's discriminator: tells from class probabilities which client made them.

Equations of P. Han, X. Shi, J. Huang, arXiv:2311.16584. With h the network's softmax, p_n
the softmax of client n's logits f_n at temperature E, and
U_n = log h(p_n)_n = -CE(n, h(p_n)) (7), the discriminator ascends the mean of U over
clients and samples (8, 15), and clients descend their own U_n: they are sent
dU_n / df_n (21), of each sample alone, unscaled.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.method import Arrays, stream_seed
from fedsuite.models.optimizer_state import load_training_state, training_state

Network = Callable[[Tensor], Tensor]


def scores(network: Network, logits: Tensor, temperature: float) -> Tensor:
    """Return the network's logits over clients, shape (clients, batch, labels)."""
    return network(functional.softmax(logits / temperature, dim=2))


def discriminator_loss(
    network: Network, logits: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Return the mean cross-entropy over clients and samples, -U of equation 8.

    ``logits`` are (clients, batch, classes), ``labels`` (clients,), temperature is E > 0.
    """
    return _cross_entropy(scores(network, logits, temperature), labels, "mean")


def adversarial_gradient(
    network: Network, logits: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Return dU_n(x) / df_n(x) for each client n and sample x, shape of ``logits``.

    Divided by neither the batch nor the clients; each row sums to 0. Parameters as in
    :func:`discriminator_loss`.
    """
    given = logits.detach().requires_grad_(True)
    total = _cross_entropy(scores(network, given, temperature), labels, "sum")
    (gradient,) = torch.autograd.grad(-total, given)
    return gradient


class Discriminator:
    """Network and optimiser on the server, with their state.

    Parameters
    ----------
    num_classes, num_labels
        Width of its input, and of its output: one label per client.
    widths
        Hidden layers, with ReLU.
    optimizer, learning_rate
        ``adam`` or ``sgd``, and its step.
    temperature
        E > 0 of the softmax of outputs.
    seed
        Of its initial parameters.
    """

    def __init__(
        self,
        num_classes: int,
        num_labels: int,
        *,
        widths: Sequence[int] = (32, 265),
        optimizer: str = "adam",
        learning_rate: float = 1e-4,
        temperature: float = 2.0,
        seed: int = 0,
    ) -> None:
        self.temperature = temperature
        self.network = _network(num_classes, widths, num_labels, seed)
        kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        self.optimizer = kind(self.network.parameters(), lr=learning_rate)

    def step(self, logits: NDArray[Any], labels: Sequence[int]) -> tuple[float, float]:
        """Take one step; return cross-entropy and accuracy before it.

        ``logits`` are (clients, batch, classes); labels 0 to num_labels - 1.
        """
        outputs, wanted = torch.tensor(logits), torch.tensor(labels)
        self.optimizer.zero_grad(set_to_none=True)
        client_scores = scores(self.network, outputs, self.temperature)
        loss = _cross_entropy(client_scores, wanted, "mean")
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        right = (client_scores.argmax(dim=2) == wanted[:, None]).double().mean()
        return float(loss.detach()), float(right)

    def gradient(self, logits: NDArray[Any], labels: Sequence[int]) -> NDArray[np.float32]:
        """Return :func:`adversarial_gradient` under the network as it is now."""
        gradient: NDArray[np.float32] = adversarial_gradient(
            self.network, torch.tensor(logits), torch.tensor(labels), self.temperature
        ).numpy()
        return gradient

    def state(self) -> Arrays:
        """Return parameters and the optimiser's memory."""
        return training_state(self.network, self.optimizer)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`state` returned."""
        load_training_state(self.network, self.optimizer, state)


def _cross_entropy(client_scores: Tensor, labels: Tensor, reduction: str) -> Tensor:
    wanted = labels[:, None].expand(client_scores.shape[:2])
    return functional.cross_entropy(
        client_scores.flatten(0, 1), wanted.flatten(), reduction=reduction
    )


def _network(
    num_classes: int, widths: Sequence[int], num_labels: int, seed: int
) -> nn.Sequential:
    layers: list[nn.Module] = []
    sizes = (num_classes, *widths)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream_seed(seed, "discriminator"))
        for size, wider in itertools.pairwise(sizes):
            layers += [nn.Linear(size, wider), nn.ReLU()]
        layers.append(nn.Linear(sizes[-1], num_labels))
    return nn.Sequential(*layers)
