"""Base of methods that must see all replies of a round before they can weigh one.

They hold the models of a round in memory, where FedAvg holds a sum. Replies without
examples are left out.
"""

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.core.settings import given, state
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, LOSS_BEFORE, Arrays
from fedsuite.rounds.declaration import ClientNeeds, NeededMetric, Release
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.validation import SUM, ClientReply


class GatheredStrategy(FederatedStrategy):
    """Collects the replies; a method overrides :meth:`combine`.

    Takes the keywords of :class:`~fedsuite.rounds.strategy.FederatedStrategy`.
    """

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "weights or steps come of all clients' replies together",
    )

    _usable: list[ClientReply] = state(default_factory=list)

    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        """Return what a client must report: metric to its least and largest value."""
        return {}

    @abstractmethod
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        """Return the new global arrays, or None to keep the old ones.

        Parameters
        ----------
        arrays
            Global arrays that were sent, read-only.
        replies
            Good replies with examples, in client-id order; at least one.
        """

    def of_sum(self, arrays: Arrays, reply: ClientReply) -> Arrays:
        """Return the new global arrays of a secure sum, which has the method's weights."""
        return reply.arrays[ARRAYS]

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        expected = replace(exchange.expected, bounds=self.needed_metrics())
        return replace(exchange, expected=expected)

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._usable = []

    @override
    def take(self, reply: ClientReply) -> None:
        if reply.num_examples > 0:
            self._usable.append(reply)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        usable, self._usable = self._usable, []
        if not usable:
            return None
        if usable[0].client_id == SUM:
            return self.of_sum(arrays, usable[0])
        self.averaging.check(len(usable))
        return self.combine(arrays, usable)


class LossStrategy(GatheredStrategy):
    """Base of methods that need each client's loss under the model that was sent."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        metrics=(
            NeededMetric(
                LOSS_BEFORE,
                "loss_before_key",
                "the mean loss of the received model over the client's training data",
            ),
        )
    )

    loss_before_key: str = given(
        default=LOSS_BEFORE,
        help="metric that holds F_k(w_t), the mean loss over all of the client's "
        "training data before training: finite and >= 0, else the reply is not used",
    )

    @override
    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        return {self.loss_before_key: (0.0, math.inf)}

    @override
    def claims(self) -> Collection[str]:
        return (self.loss_before_key,)

    def losses_of(self, replies: Sequence[ClientReply]) -> Vector:
        """Return the losses before training, in the order of the replies."""
        return metric_of(replies, self.loss_before_key)


def metric_of(replies: Sequence[ClientReply], name: str) -> Vector:
    """Return one metric of all replies."""
    return np.array([reply.metrics[name] for reply in replies], dtype=np.float64)


def examples_of(replies: Sequence[ClientReply]) -> Vector:
    """Return the numbers of examples n_k of all replies."""
    return np.array([reply.num_examples for reply in replies], dtype=np.float64)


def by_client(replies: Sequence[ClientReply], numbers: Vector) -> dict[int, float]:
    """Return one number of each client."""
    clients = (reply.client_id for reply in replies)
    return dict(zip(clients, numbers.tolist(), strict=True))
