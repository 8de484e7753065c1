"""FedVARP: the server moves each client's update by what it remembers of all of them.

D. Jhunjhunwala, P. Sharma, A. Nagarkatti, G. Joshi, "FedVARP: Tackling the Variance Due to
Partial Client Participation in Federated Learning", UAI 2022, arXiv:2207.14130.

Equation used: sum_{i in S_t} p_i (Delta_i - y_i) + (1/m) sum_j y_j, then y_i <- Delta_i for
the clients of the round; y is 0 before a client's first. With p_i = 1/n it is the paper's.
Here each client's update is corrected to Delta_i - y_i + mean(y) before the method sees it,
so that any weights p that sum to 1 give the equation.

Statistics are left alone (:func:`is_statistic`): extrapolated, a variance may turn
negative.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.messages.array_records import num_bytes
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.server_optimizer import check_one_model
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply


class UpdateMemory(Stage):
    """Each client's last update, and the sum of them.

    Parameters
    ----------
    num_clients
        Returns the size m >= 1 of the federation, over which the memory is averaged.
    """

    name: ClassVar[str] = "fedvarp"

    def __init__(self, num_clients: Callable[[], int]) -> None:
        self._num_clients = num_clients
        self.updates: dict[int, Arrays] = {}
        self.total: Arrays = {}
        self._fresh: dict[int, Arrays] = {}
        self._sent: Arrays = {}
        self._mean: Arrays = {}

    @override
    def ask(self, exchange: Exchange) -> Exchange:
        check_one_model(exchange)
        # A layer may send a part of it alone.
        self._sent = exchange.shared[ARRAYS]
        return exchange

    @override
    def open(self, exchange: Exchange) -> None:
        self._fresh = {}
        size = self._num_clients()
        self._mean = {name: total / size for name, total in self.total.items()}

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        """Return the reply with its model moved by mean(y) - y_i."""
        arrays = dict(reply.arrays[ARRAYS])
        known = self.updates.get(reply.client_id, {})
        fresh: Arrays = {}
        for name, array in arrays.items():
            if name not in self._sent or is_statistic(name, array):
                continue
            fresh[name] = array - self._sent[name]
            if name in self._mean:
                shift = self._mean[name] - known.get(name, 0.0)
                arrays[name] = (array + shift).astype(array.dtype)
        self._fresh[reply.client_id] = fresh
        return (replace(reply, arrays={**reply.arrays, ARRAYS: arrays}),)

    @override
    def counted(self) -> None:
        for client_id, fresh in self._fresh.items():
            known = self.updates.get(client_id, {})
            # New arrays and dictionaries: someone may hold the old ones, to go back to.
            totals = {}
            for name, update in fresh.items():
                total = self.total.get(name, np.zeros(update.shape))
                change = np.subtract(update, known.get(name, 0.0), dtype=np.float64)
                totals[name] = total + change
            self.total = {**self.total, **totals}
            self.updates = {**self.updates, client_id: {**known, **fresh}}
        self._fresh = {}

    def num_bytes(self) -> int:
        """Return how much memory the clients' updates take."""
        return sum(num_bytes(update) for update in self.updates.values())

    @override
    def state(self) -> State:
        updates = {str(client_id): update for client_id, update in self.updates.items()}
        return {"total": self.total, "updates": updates}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self.total, self._fresh = dict(state["total"]), {}
        self.updates = {int(k): dict(update) for k, update in state["updates"].items()}
