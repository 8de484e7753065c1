"""q-FFL, solved by q-FedAvg: clients with a larger loss count more.

T. Li, M. Sanjabi, A. Beirami, V. Smith, "Fair Resource Allocation in Federated Learning",
ICLR 2020, arXiv:1905.10497.

Objective (1): min_w sum_k p_k / (q + 1) F_k(w)^{q+1}. q-FedAvg (Algorithm 2), with
L = 1 / eta, eta the local learning rate, and F_k the loss of w_t before training:

    g_k = L (w_t - w_k)
    Delta_k = F_k^q g_k
    h_k = q F_k^{q-1} ||g_k||^2 + L F_k^q
    w_{t+1} = w_t - sum_k Delta_k / sum_k h_k

With a_k = F_k^q and b_k = q L F_k^{q-1} ||w_t - w_k||^2 it is computed as the mean

    w_{t+1} = (sum_k a_k w_k + sum_k b_k w_t) / sum_k (a_k + b_k):

q = 0 is the plain mean bit for bit, and weights divided by max F^q never overflow.

Deviations: 1e-10 is added to each loss, as in the authors' code, since F^{q-1} has no value
at 0. L follows the decay of the learning rate. Clients are sampled uniformly and p_k is
left out, as in the authors' experiments. Statistics of normalisation layers get the mean of
the clients' with weights a_k, and take no part in ||w_t - w_k||. With momentum or Adam
L = 1 / eta is a convention, not a bound.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    LEARNING_RATE,
    LOSS_BEFORE,
    SHARES_OF_PAPERS,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    LossStrategy,
    NeededMetric,
    ServerLogger,
    Summed,
    Value,
    Vector,
    by_client,
    client_updates,
    given,
    inner,
    key,
    metric_of,
    share_ratio_key,
    state,
    weighted_mean,
    with_statistics,
)

LOSS_FLOOR = 1e-10
LEAST_RATE = 1e-12

HARDLY_MOVES = 0.9
"""Weight of the old model in the new one from which a warning says so, once."""

logger = ServerLogger(__name__)


def q_fedavg_weights(
    losses: Vector, squared_lengths: Vector, q: float, learning_rate: float
) -> tuple[Vector, float]:
    """Return a_k of the clients and the sum of b_k, both over the largest a_k.

    ``losses`` F_k are those before training; q >= 0 and the learning rate eta > 0, else
    ValueError. All weights are finite; with q = 0 the sum is 0.
    """
    if not q >= 0:
        raise ValueError(f"q = {q}: expected a number >= 0")
    if not learning_rate > 0:
        raise ValueError(f"learning_rate = {learning_rate}: expected a number > 0")
    raised = losses + LOSS_FLOOR
    clients = (raised / raised.max()) ** q
    sent = clients * q * squared_lengths / (raised * learning_rate)
    return clients, float(sent.sum())


class QFFL(LossStrategy):
    """q-FedAvg."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        metrics=(
            *LossStrategy.NEEDS_OF_CLIENT.metrics,
            NeededMetric(
                LEARNING_RATE, "learning_rate", "the step size of local training", "it"
            ),
        )
    )

    SUMS: ClassVar[Summed | None] = Summed(
        "clients", form="raised", rate="qffl-q", loss=LOSS_BEFORE
    )

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("aggregator", "liars", "mix"), "its aggregation is a rule of its own"
    )

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    max_share_ratio: float | str = share_ratio_key()

    qffl_q: float = key(
        default=1.0,
        help="fairness q; 0 is FedAvg with equal weights, large favours the worst",
        minimum=0.0,
        search=Between(0.01, 10.0),
    )
    learning_rate: float | None = given(
        default=None, help="eta = 1 / L; None is the median of the replies'"
    )
    _warned: bool = state(default_factory=bool)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.learning_rate
        if rate is not None and not rate >= LEAST_RATE:
            raise ValueError(f"learning_rate = {rate}: expected a number > 0")

    @override
    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        needed = dict(super().needed_metrics())
        if self.learning_rate is None:
            needed[LEARNING_RATE] = (LEAST_RATE, sys.float_info.max)
        return needed

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        rate = self.learning_rate
        if rate is None:
            rate = float(np.median(metric_of(replies, LEARNING_RATE)))
        lengths = np.array([inner(g, g) for g in client_updates(arrays, replies)])
        losses = self.losses_of(replies)
        weights, sent = q_fedavg_weights(losses, lengths, self.qffl_q, rate)
        shares = self.averaging.shares(weights, np.ones(len(weights)))
        if shares is not weights:
            weights = weights.sum() * shares
        self.record_weights(by_client(replies, weights))
        kept = sent / (sent + float(weights.sum()))
        self.round_metrics["weight_of_old_model"] = kept
        self._tell_kept(kept, rate)
        models = [reply.arrays[ARRAYS] for reply in replies]
        held = weighted_mean([*models, arrays], [*weights.tolist(), sent]) or arrays
        return with_statistics(held, models, weights.tolist())

    def _tell_kept(self, kept: float, rate: float) -> None:
        """Say once that the model hardly moves, and why."""
        if self._warned or kept < HARDLY_MOVES:
            return
        self._warned = True
        logger.warning(
            "round %d: q-FFL keeps %.0f %% of the old model, because clients moved further "
            "than plain SGD at learning rate %g does in few steps: leave out momentum or "
            "Adam, train fewer steps, or lower qffl_q",
            self.server_round,
            100 * kept,
            rate,
        )
