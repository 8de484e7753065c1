"""FedAVE: rewards by accuracy and by how like the server's data a client's are.

Z. Wang, Z. Peng, X. Fan, Z. Wang, S. Wu, R. Yu, P. Yang, C. Zheng, C. Wang, "FedAVE:
Adaptive Data Value Evaluation Framework for Collaborative Fairness in Federated Learning",
Neurocomputing 574 (2024) 127227.

Equations used, as the authors' code has them. Each client k has a model w_k of its own.
With l_k its losses on the mini-batches of its training data under w_k, before training, and
s_k the server's on its validation data, both cut to the shorter and divided by their sum:
KL_k = sum_b l_kb ln(l_kb / s_kb), D_k = (1 / KL_k) / max_j (1 / KL_j);
u_k = Gamma Delta_k / (||Delta_k|| + 1e-7), G = sum_k (n_k / n) u_k in every round;
m_k = a_k D_k^2, a_k the validation accuracy of the model that k trained;
r <- m in a client's first round, else alpha r + (1 - alpha) m, not below 1e-3, divided by
the sum; q_k = D_k tanh(beta r_k) / max_j tanh(beta r_j); w_k <- w_k + the share q_k of G.
The first round measures only: no model changes.

Known to hold: with D = 1 everywhere and beta -> infinity all clients have the same model,
that of federated averaging with updates of equal length.

Deviations, and what the sources leave open. Own updates, lengths and shares are as in
:mod:`fedsuite.strategies.reward.cgsv`. The losses come in the order of stored data, as in
the code, though this order makes no distribution. KL is at least 1e-12, where the code
divides by zero. A client whose data fill a single mini-batch has KL = 0: it gets the mean
KL of the others, where the code would trust it alone; lower ``fedave-loss-batch`` for such
clients. FedAKD's own version (upload and download shares, no D) is another method. The
losses are the client's word: one that knows the server's data could claim any D.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    LOSSES,
    NUM_BATCHES,
    TRAIN,
    Arrays,
    ClientNeeds,
    ClientReply,
    Exchange,
    RecordSpec,
    Value,
    Vector,
    examples_of,
    key,
    part,
    state,
)
from fedsuite.strategies.reward.cgsv import total_update
from fedsuite.strategies.reward.reputation import (
    VALIDATION_DEFAULTS,
    CommonUpdateKeys,
    RewardStrategy,
    Validation,
    merged,
    normalised,
    reward_shares,
    shares_of,
    smoothed,
)

LEAST_LOSS = 1e-12
"""Least value of losses and divergences."""

BELIEVED = 100.0
"""How many times smaller than the median a divergence may be and count."""


def loss_divergence(client: Vector, server: Vector) -> float:
    """Return KL_k of losses >= 0 on mini-batches, cut to the shorter sequence.

    NaN where a sequence has fewer than two losses, or a loss is not finite.
    """
    length = min(client.size, server.size)
    both = np.stack([client[:length], server[:length]])
    if length < 2 or not np.isfinite(both).all():
        return float("nan")
    left, right = map(shares_of, np.maximum(both, LEAST_LOSS))
    return max(float((left * np.log(left / right)).sum()), LEAST_LOSS)


def data_values(divergences: Vector) -> Vector:
    """Return D_k, in (0, 1] with a largest of 1; unknown (NaN) divergences are average."""
    known = divergences[~np.isnan(divergences)]
    average = known.mean() if known.size else 1.0
    filled = np.where(np.isnan(divergences), average, divergences)
    # A client that guesses the server's losses must not take all from the others.
    median = np.sort(filled)[(filled.size - 1) // 2]
    best = max(filled.min(), median / BELIEVED)
    values: Vector = np.minimum(best / filled, 1.0)
    return values


class FedAVE(CommonUpdateKeys, RewardStrategy):
    """Clients get a share of the common update by accuracy and value of their data."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedAVEClient", "measures its losses"
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = VALIDATION_DEFAULTS

    fedave_loss_batch: int = key(
        default=64, help="samples per loss; keep it well below a client's", minimum=1
    )
    validation: Validation = part(help="scores models on the server")
    _server_losses: dict[int, Vector] = state(default_factory=dict)

    @override
    def claims(self) -> Collection[str]:
        return (NUM_BATCHES,)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        self._server_losses = {
            k: self.batch_losses(exchange.own[k][ARRAYS]) for k in client_ids
        }
        count = max(
            (row_losses.size for row_losses in self._server_losses.values()), default=0
        )
        losses: RecordSpec = {"losses": ((count,), "float64")}
        expected = replace(
            exchange.expected,
            arrays={**exchange.expected.arrays, LOSSES: losses},
            bounds={NUM_BATCHES: (0, count)},
        )
        config = {"loss-batch": self.fedave_loss_batch, NUM_BATCHES: count}
        return replace(exchange, config=config, expected=expected)

    def batch_losses(self, arrays: Arrays) -> Vector:
        """Return a model's losses on the mini-batches of the validation data."""
        losses = self.validation.batch_losses(arrays, self.fedave_loss_batch)
        return np.asarray(losses, dtype=np.float64)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        client_ids = [reply.client_id for reply in replies]
        values = data_values(np.array([self._divergence(reply) for reply in replies]))
        updates = [
            normalised(update, self.update_length)
            for update in self.updates_of(arrays, replies)
        ]
        total = total_update(updates, shares_of(examples_of(replies)))
        accuracies = [self.validation.accuracy(reply.arrays[ARRAYS]) for reply in replies]
        measured = np.array(accuracies) * values**2
        new = self.new_shares(client_ids, measured)
        shares = values * reward_shares(new, self.altruism)
        first = not self.reputation
        reputation = merged(self.reputation, client_ids, new)
        for reply, value, accuracy in zip(replies, values, accuracies, strict=True):
            self.reports[TRAIN].annotate(
                reply.client_id, data_value=float(value), validation_accuracy=accuracy
            )
        if first:
            self.stage(reputation, {})
            self.record(replies, reputation, np.zeros_like(shares))
            return dict(arrays)
        return self.reward_models(arrays, replies, reputation, total, shares)

    def new_shares(self, client_ids: Sequence[int], measured: Vector) -> Vector:
        """Return new reputations; a client's first measurement is its old one."""
        old = self.old_shares(client_ids)
        known = np.array([k in self.reputation for k in client_ids])
        return smoothed(np.where(known, old, measured), measured, self.reputation_memory)

    def _divergence(self, reply: ClientReply) -> float:
        count = int(reply.metrics[NUM_BATCHES])
        losses = reply.arrays[LOSSES]["losses"][:count]
        return loss_divergence(losses, self._server_losses[reply.client_id])
