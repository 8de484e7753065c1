"""FedNova: averaging of updates that are divided by each client's number of steps.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, "Tackling the Objective Inconsistency
Problem in Heterogeneous Federated Optimization", NeurIPS 2020, arXiv:2007.07481.

Equation used: with d_k = (w_t - w_k) / tau_k, tau_k the steps that client k took, and
p_k = n_k / n, the server takes w_{t+1} = w_t - eta tau_eff sum_k p_k d_k, where
tau_eff = sum_k p_k tau_k. Clients with equal steps make it FedAvg.

Deviation: plain SGD alone, whose step weights are 1 each; momentum and Adam are refused.
Statistics of normalisation layers are averaged as in FedAvg.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    LARGEST_COUNT,
    NUM_STEPS,
    SHARES_OF_PAPERS,
    Arrays,
    ClientNeeds,
    ClientReply,
    GatheredStrategy,
    NeededMetric,
    Summed,
    Value,
    Vector,
    by_client,
    client_updates,
    examples_of,
    given,
    metric_of,
    server_rate_key,
    share_ratio_key,
    take_step,
)


def normalised_step(updates: Vector, shares: Vector, steps: Vector) -> Vector:
    """Return tau_eff sum_k p_k d_k, what the model moves by.

    ``updates`` are w_t - w_k ``[clients, parameters]``, ``shares`` p_k of sum 1, ``steps``
    tau_k. A client of 0 steps, which a single row makes, moved nothing.
    """
    per_step = np.divide(shares, steps, out=np.zeros_like(shares), where=steps > 0)
    direction: Vector = (per_step[:, np.newaxis] * updates).sum(axis=0)
    return float((shares * steps).sum()) * direction


def believed_steps(steps: Vector, sizes: Vector, ratio: float) -> Vector:
    """Return claimed numbers of steps within what clients of these sizes may take.

    Clients take as many steps as the median one, or so many more or fewer as they have
    examples. A claim counts up to ``ratio`` >= 1 times the more of the two, and down to the
    less of them over ``ratio``. A longer claim would lengthen all clients' steps, a shorter
    one the client's own.
    """
    middle = (len(steps) - 1) // 2
    median, size = np.sort(steps)[middle], np.sort(sizes)[middle]
    least = np.minimum(sizes / size, 1.0) * median / ratio
    most = np.maximum(sizes / size, 1.0) * median * ratio
    return np.clip(steps, least, most)


class FedNova(GatheredStrategy):
    """FedAvg in which no client counts for more because it took more steps."""

    SUMS: ClassVar[Summed | None] = Summed(form="per-step")
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        metrics=(NeededMetric(NUM_STEPS, "local_steps", "the number of local steps", "it"),)
    )
    FIXED: ClassVar[Mapping[str, Value]] = {"optimizer": "sgd", "momentum": 0.0}
    FIXED_REASON: ClassVar[str] = "its division by steps is that of plain SGD"

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("aggregator", "liars", "mix"), "its aggregation is a rule of its own"
    )

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    max_share_ratio: float | str = share_ratio_key()

    server_learning_rate: float = server_rate_key()

    local_steps: int | None = given(
        default=None, help="local steps of each client; None takes the replies' num-steps"
    )

    @override
    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        return {} if self.local_steps else {NUM_STEPS: (0.0, LARGEST_COUNT)}

    @override
    def claims(self) -> Collection[str]:
        return () if self.local_steps else (NUM_STEPS,)

    @override
    def of_sum(self, arrays: Arrays, reply: ClientReply) -> Arrays:
        (update,) = client_updates(arrays, [reply])
        return take_step(arrays, self.server_learning_rate * update, [reply])

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        sizes = examples_of(replies)
        weights = self.averaging.shares(sizes)
        shares = weights / weights.sum()
        self.record_weights(by_client(replies, shares))
        known = self.local_steps
        steps = (
            np.full(len(replies), float(known))
            if known
            else believed_steps(metric_of(replies, NUM_STEPS), sizes, self.share_ratio)
        )
        step = normalised_step(client_updates(arrays, replies), shares, steps)
        return take_step(arrays, self.server_learning_rate * step, replies)
