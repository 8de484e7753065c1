"""FedAvg: federated averaging.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017, arXiv:1602.05629.

Equation used (Algorithm 1): w_{t+1} = sum_k (n_k / n) w_{t+1}^k over the sampled clients,
with n the examples of those that answered. Deviation: a server learning rate eta of later
papers, w_{t+1} = w_t + eta (mean - w_t); eta = 1 is FedAvg as published.
"""

from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import override

from fedsuite.method import (
    Arrays,
    FederatedStrategy,
    Release,
    server_rate_key,
    step_towards,
)


class FedAvg(FederatedStrategy):
    """Average of the clients' models, weighted by their numbers of examples."""

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {}

    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "each reply is one changed copy of the model, made of one client's data",
    )

    server_learning_rate: float = server_rate_key()

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        target = self.average_taken()
        if target is None:
            return None
        return step_towards(arrays, target, self.server_learning_rate)
