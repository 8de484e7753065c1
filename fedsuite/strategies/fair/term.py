"""TERM: tilted empirical risk minimisation, with clients as groups.

T. Li, A. Beirami, M. Sanjabi, V. Smith, "Tilted Empirical Risk Minimization", ICLR 2021,
arXiv:2007.01162.

Objective (2): R(t; w) = 1/t log sum_k p_k exp(t F_k(w)), p_k = n_k / n. Its gradient
(Lemma 1) is the mean of the clients' gradients with weights p_k exp(t F_k), normalised, so
the server takes

    w_{t+1} = sum_k omega_k w_k,   omega_k ~ p_k exp(t F_k(w_t)).

The tilt is over clients, not over samples of a batch. Losses are those before training.

Deviations: local steps in place of gradients, as in the authors' federated code, file
``tilting`` of litian96/TERM. That code has p_k = 1 / m for the m clients of a round, which
it draws by size. It divides by a running mean of exp(t (F_k - max F)), half of which is the
round's and which begins at 0, so that the weights do not sum to 1. It divides by m once
more: a step is about 1 / m of ours. Its script has t = 0.1; the default here is 1.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    LOSS_BEFORE,
    SHARES_OF_PAPERS,
    Arrays,
    Between,
    ClientReply,
    LossStrategy,
    Release,
    Summed,
    Value,
    Vector,
    examples_of,
    key,
    share_ratio_key,
)


def tilted_weights(losses: Vector, tilt: float, prior: Vector) -> Vector:
    """Return p_k exp(t F_k) up to a common factor; the largest exponential is 1.

    ``tilt`` is t, an *inverse* temperature; 0 returns the prior p_k > 0, or any multiple.
    """
    leader = losses.max() if tilt > 0 else losses.min()
    with np.errstate(over="ignore"):
        weights: Vector = prior * np.exp(tilt * (losses - leader))
    return weights


class TERM(LossStrategy):
    """FedAvg whose weights grow exponentially with the clients' losses."""

    PRIVACY: ClassVar[Release] = Release(
        "weighted",
        "a weight is n_i exp(t F_i) of one client, up to a common factor",
    )

    SUMS: ClassVar[Summed | None] = Summed(
        form="tilted", rate="term-tilt", loss=LOSS_BEFORE
    )

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {}

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    max_share_ratio: float | str = share_ratio_key()

    term_tilt: float = key(
        default=1.0,
        help="tilt t; 0 is FedAvg, large the worst client alone, below 0 the best",
        search=Between(0.01, 10.0),
    )

    @override
    def log_weights(self, replies: Sequence[ClientReply]) -> Vector:
        with np.errstate(over="ignore"):
            tilted: Vector = self.term_tilt * self.losses_of(replies)
        return tilted + np.log(examples_of(replies))

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        losses, prior = self.losses_of(replies), examples_of(replies)
        return self.average(replies, tilted_weights(losses, self.term_tilt, prior))
