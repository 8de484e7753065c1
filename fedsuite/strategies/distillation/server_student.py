"""A network on the server that learns from clients' outputs on public data."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsuite.method import Arrays, RunError, stream_seed
from fedsuite.models.distillation import probability_divergence
from fedsuite.models.optimizer_state import load_training_state, training_state


class ServerStudent:
    """Network and Adam on the server, with their state.

    The network is on the CPU, in training mode, as clients are on public data: its
    normalisation layers know public inputs alone. ``seed`` draws layers such as dropout.
    """

    def __init__(self, network: nn.Module, learning_rate: float, seed: int) -> None:
        self.network = network.train()
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        self.seed = seed

    def step(
        self, inputs: Tensor, target: NDArray[Any], server_round: int, exchange: int
    ) -> float:
        """Take one step on KL(target || prediction); return the loss before it.

        ``target`` holds probabilities ``[batch, classes]``; round and exchange name the
        draws of layers. RunError if the loss is not finite.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with self._layers(server_round, exchange):
            logits = self.network(inputs)
        wanted = torch.from_numpy(target).to(logits.dtype)
        loss = probability_divergence(logits, wanted)
        _check(loss.detach(), server_round)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())

    def logits(
        self, inputs: Tensor, server_round: int, exchange: int
    ) -> NDArray[np.float32]:
        """Return the outputs on a batch, ``[batch, classes]``; RunError if not finite."""
        # The pass changes running statistics, of a copy.
        passing = copy.deepcopy(self.network)
        with torch.no_grad(), self._layers(server_round, exchange):
            logits = passing(inputs)
        _check(logits, server_round)
        outputs: NDArray[np.float32] = logits.numpy()
        return outputs

    def state(self) -> Arrays:
        """Return parameters, buffers and the optimiser's memory."""
        return training_state(self.network, self.optimizer)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`state` returned."""
        load_training_state(self.network, self.optimizer, state)

    @contextmanager
    def _layers(self, server_round: int, exchange: int) -> Iterator[None]:
        """Give layers such as dropout the same draws throughout an exchange."""
        with torch.random.fork_rng(devices=[]):
            purpose = f"server-student-layers/{exchange}"
            seed = stream_seed(self.seed, purpose, server_round)
            torch.default_generator.manual_seed(seed)
            yield


def _check(values: Tensor, server_round: int) -> None:
    if not torch.isfinite(values).all():
        raise RunError(
            f"round {server_round}: the server's network gives NaN or infinity: lower "
            "cfd-learning-rate"
        )
