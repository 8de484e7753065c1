"""Extras on the server that any method can take: an optimiser of its own, and FedVARP.

FedVARP: D. Jhunjhunwala, P. Sharma, A. Nagarkatti, G. Joshi, "FedVARP: Tackling the
Variance Due to Partial Client Participation in Federated Learning", UAI 2022,
arXiv:2207.14130.
Equation used: sum_{i in S_t} p_i (Delta_i - y_i) + (1/m) sum_j y_j, then y_i <- Delta_i for
the clients of the round; y is 0 before a client's first. With p_i = 1/n it is the paper's.
Here each client's update is corrected to Delta_i - y_i + mean(y) before the method sees it,
so that any weights p that sum to 1 give the equation.

Statistics are left alone (:func:`is_statistic`): extrapolated, a variance may turn
negative. The optimiser is in :mod:`fedsuite.rounds.server_optimizer`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.errors import ConfigError
from fedsuite.messages.array_records import num_bytes
from fedsuite.messages.records import (
    ARRAYS,
    Arrays,
)
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.server_optimizer import ServerOptimizer, ServerOptimizerKeys
from fedsuite.rounds.validation import ClientReply


class UpdateMemory:
    """FedVARP's memory: each client's last update, and the sum of them."""

    def __init__(self) -> None:
        self.updates: dict[int, Arrays] = {}
        self.total: Arrays = {}
        self._fresh: dict[int, Arrays] = {}

    def correct(
        self, sent: Arrays, replies: Iterable[ClientReply], num_clients: int
    ) -> Iterator[ClientReply]:
        """Yield replies whose model is moved by mean(y) - y_i.

        Parameters
        ----------
        sent
            The model that all clients started from.
        replies
            Taken and given one at a time.
        num_clients
            Size m of the federation, over which the memory is averaged.
        """
        self._fresh = {}
        mean = {name: total / num_clients for name, total in self.total.items()}
        for reply in replies:
            arrays = dict(reply.arrays[ARRAYS])
            known = self.updates.get(reply.client_id, {})
            fresh: Arrays = {}
            for name, array in arrays.items():
                if name not in sent or is_statistic(name, array):
                    continue
                fresh[name] = array - sent[name]
                if name in mean:
                    shift = mean[name] - known.get(name, 0.0)
                    arrays[name] = (array + shift).astype(array.dtype)
            self._fresh[reply.client_id] = fresh
            yield replace(reply, arrays={**reply.arrays, ARRAYS: arrays})

    def commit(self) -> None:
        """Remember the updates of the round: it counted."""
        for client_id, fresh in self._fresh.items():
            known = self.updates.setdefault(client_id, {})
            for name, update in fresh.items():
                # A new array: someone may hold the old one, to go back to.
                total = self.total.get(name, np.zeros(update.shape))
                change = np.subtract(update, known.get(name, 0.0), dtype=np.float64)
                self.total[name] = total + change
                known[name] = update
        self._fresh = {}

    def num_bytes(self) -> int:
        """Return how much memory the clients' updates take."""
        return sum(num_bytes(update) for update in self.updates.values())


class ServerExtras:
    """What stands between the replies, the method, and the new model.

    Parameters
    ----------
    optimizer
        What becomes of the method's step; none leaves it as it is.
    fedvarp
        Whether clients' updates are corrected by an :class:`UpdateMemory`.
    """

    def __init__(
        self, *, optimizer: ServerOptimizerKeys | None = None, fedvarp: bool = False
    ) -> None:
        self.optimizer = ServerOptimizer(optimizer or ServerOptimizerKeys())
        self.memory = UpdateMemory() if fedvarp else None
        self._sent: Arrays = {}

    @property
    def are_on(self) -> bool:
        """Whether any extra is on."""
        return self.memory is not None or self.optimizer.is_on

    def begin(self, exchange: Exchange) -> None:
        """Note what is sent to train.

        Raises
        ------
        ConfigError
            If an extra is on, and the clients do not send back one shared model.
        """
        self._sent = exchange.shared.get(ARRAYS, {})
        one_model = ARRAYS in exchange.shared and ARRAYS in exchange.expected.arrays
        own_models = any(ARRAYS in records for records in exchange.own.values())
        if self.are_on and (own_models or not one_model):
            raise ConfigError(
                "server-momentum, server-optimizer and fedvarp need a method whose clients "
                "train a shared model and send it back: leave them off, or choose another "
                "method"
            )

    def correct(
        self, replies: Iterator[ClientReply], num_clients: int
    ) -> Iterator[ClientReply]:
        """Return the replies as the method is to see them; ``num_clients`` at least 1."""
        if self.memory is None:
            return replies
        return self.memory.correct(self._sent, replies, num_clients)

    def step(self, old: Arrays, new: Arrays) -> Arrays:
        """Return the model after the server's step from ``old`` towards ``new``."""
        return self.optimizer.step(old, new)

    def commit(self) -> None:
        """Remember the round: it counted."""
        self.optimizer.commit()
        if self.memory is not None:
            self.memory.commit()

    def state(self) -> Arrays:
        """Return what must survive a restart."""
        state = self.optimizer.state()
        if self.memory is not None:
            state |= {f"total/{name}": a for name, a in self.memory.total.items()}
            for client_id, update in self.memory.updates.items():
                state |= {f"{client_id}/{name}": a for name, a in update.items()}
        return state

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`state` returned."""
        self.optimizer.restore(state)
        if self.memory is None:
            return
        self.memory = UpdateMemory()
        for key, array in state.items():
            kind, _, name = key.partition("/")
            if kind == "total":
                self.memory.total[name] = array.copy()
            elif kind.isdecimal():
                self.memory.updates.setdefault(int(kind), {})[name] = array
