"""FedNova: averaging of updates that are divided by each client's number of steps.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, "Tackling the Objective Inconsistency
Problem in Heterogeneous Federated Optimization", NeurIPS 2020, arXiv:2007.07481.

Equation used: with d_k = (w_t - w_k) / tau_k, tau_k the steps that client k took, and
p_k = n_k / n, the server takes w_{t+1} = w_t - eta tau_eff sum_k p_k d_k, where
tau_eff = sum_k p_k tau_k. Clients with equal steps make it FedAvg.

Deviation: plain SGD alone, whose step weights are 1 each; momentum and Adam are refused.
Statistics of normalisation layers are averaged as in FedAvg.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    BELIEVED_COUNT,
    LARGEST_COUNT,
    NUM_STEPS,
    Arrays,
    ClientNeeds,
    ClientReply,
    GatheredStrategy,
    Limit,
    NeededMetric,
    ServerRate,
    Value,
    Vector,
    by_client,
    client_updates,
    examples_of,
    given,
    metric_of,
    take_step,
)


def normalised_step(updates: Vector, shares: Vector, steps: Vector) -> Vector:
    """Return tau_eff sum_k p_k d_k, what the model moves by.

    ``updates`` are w_t - w_k ``[clients, parameters]``, ``shares`` p_k of sum 1, ``steps``
    tau_k >= 1.
    """
    direction: Vector = ((shares / steps)[:, np.newaxis] * updates).sum(axis=0)
    return float((shares * steps).sum()) * direction


class FedNova(ServerRate, GatheredStrategy):
    """FedAvg in which no client counts for more because it took more steps."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        metrics=(NeededMetric(NUM_STEPS, "local_steps", "the number of local steps", "it"),)
    )
    FIXED: ClassVar[Mapping[str, Value]] = {"optimizer": "sgd", "momentum": 0.0}
    FIXED_REASON: ClassVar[str] = "its division by steps is that of plain SGD"

    local_steps: int | None = given(
        default=None, help="local steps of each client; None takes the replies' num-steps"
    )

    @override
    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        return {} if self.local_steps else {NUM_STEPS: (1.0, LARGEST_COUNT)}

    @override
    def claims(self) -> Mapping[str, Limit]:
        return {NUM_STEPS: BELIEVED_COUNT}

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        shares = examples_of(replies) / examples_of(replies).sum()
        self.record_weights(by_client(replies, shares))
        known = self.local_steps
        steps = (
            np.full(len(replies), float(known)) if known else metric_of(replies, NUM_STEPS)
        )
        step = normalised_step(client_updates(arrays, replies), shares, steps)
        return take_step(arrays, self.server_learning_rate * step, replies)
