"""AFL: agnostic federated learning, the worst mixture of clients is minimised.

M. Mohri, G. Sivek, A. T. Suresh, "Agnostic Federated Learning", ICML 2019,
arXiv:1902.00146.

Objective (4): min_w max_lambda sum_k lambda_k F_k(w), lambda in the simplex over all
clients. Stochastic-AFL (Algorithm 1) ascends in lambda and descends in w at once:

    lambda <- Pi(lambda + gamma F(w_t)),   w_{t+1} = sum_k lambda_k w_k,

Pi the Euclidean projection onto the simplex.

Deviations: local training replaces one gradient step. The new lambda weights the models of
its own round. The result is the last model; the paper's guarantee is for the mean of all.
Where only some clients answer, the others keep their lambda, and those that answer share
their sum s: lambda <- s Pi(lambda / s + gamma F). With all clients this is the paper's
step, and gamma means the same at any share of clients.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    SHARES_OF_PAPERS,
    Arrays,
    Between,
    ClientReply,
    ConfigValue,
    LossStrategy,
    Value,
    Vector,
    key,
    share_ratio_key,
    state,
)


def project_to_simplex(vector: Vector) -> Vector:
    """Return the nearest point with entries >= 0 that sum to 1.

    Parameters
    ----------
    vector
        ``[n]``, finite, n >= 1.
    """
    # Adding a number to all entries changes nothing; this keeps huge ones exact.
    shifted = vector - vector.max()
    falling = np.sort(shifted)[::-1]
    thresholds = (np.cumsum(falling) - 1.0) / np.arange(1, len(falling) + 1)
    support = int(np.count_nonzero(falling > thresholds))
    projected: Vector = np.maximum(shifted - thresholds[support - 1], 0.0)
    return projected


def ascend(weights: Vector, losses: Vector, step: float) -> Vector:
    """Return lambda after a step of projected ascent; its sum stays.

    ``step`` is gamma >= 0; 0 returns the weights as they are.
    """
    total = float(weights.sum())
    if step == 0 or total == 0:
        return weights
    # A client more than 1 behind the worst has no weight: -1e12 stands for any overflow.
    with np.errstate(over="ignore"):
        raised = np.maximum(step * (losses - losses.max()), -1e12)
    return total * project_to_simplex(weights / total + raised)


class AFL(LossStrategy):
    """Mean of the models with weights that chase the worst client."""

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {}

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    max_share_ratio: float | str = share_ratio_key()

    afl_step: float = key(
        default=0.1,
        help="step gamma of lambda; 0 is FedAvg with equal weights",
        minimum=0.0,
        search=Between(0.001, 1.0),
    )
    _lambda: dict[int, float] = state(default_factory=dict)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        self._admit(self.members())
        answered = [reply.client_id for reply in replies]
        old = np.array([self._lambda[client_id] for client_id in answered])
        new = ascend(old, self.losses_of(replies), self.afl_step)
        shares = self.averaging.shares(new, np.ones(len(new)))
        if shares is not new:
            # Nor does what clients claim add up from round to round.
            new = new.sum() * shares
        self._lambda.update(zip(answered, new.tolist(), strict=True))
        self.round_metrics["largest_lambda"] = max(self._lambda.values())
        # Clients that all lost their weight count alike; equal weights are exactly 1.
        largest = new.max()
        return self.average(replies, new / largest if largest else np.ones(len(new)))

    @override
    def neutral_weight_of(self, reply: ClientReply) -> float:
        return 1.0

    def _admit(self, client_ids: Sequence[int]) -> None:
        """Give new clients 1 / M each, taken from the others in proportion."""
        new = [client_id for client_id in client_ids if client_id not in self._lambda]
        if not new:
            return
        share = 1.0 / (len(self._lambda) + len(new))
        rest = 1.0 - share * len(new)
        self._lambda = {client_id: rest * v for client_id, v in self._lambda.items()}
        self._lambda.update(dict.fromkeys(new, share))

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        clients = np.array(list(self._lambda), dtype=np.uint64)
        return {"clients": clients, "lambda": np.array(list(self._lambda.values()))}, {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        clients, weights = arrays["clients"].tolist(), arrays["lambda"].tolist()
        self._lambda = dict(zip(clients, weights, strict=True))
