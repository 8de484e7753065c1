"""CGSV: rewards by the cosine of a client's update with everybody's.

X. Xu, L. Lyu, X. Ma, C. Miao, C. S. Foo, B. K. H. Low, "Gradient Driven Rewards to
Guarantee Fairness in Collaborative Machine Learning", NeurIPS 2021.

Equations used, for the clients k of a round with models w_k of their own:
u_k = Gamma Delta_k / (||Delta_k|| + 1e-7), Delta_k what k's training added to w_k;
G = sum_k omega_k u_k, omega = n_k / n in the first round and the reputation r_k later;
r <- alpha r + (1 - alpha) cos(u_k, G), not below 1e-3, divided by the sum;
q_k = tanh(beta r_k) / max_j tanh(beta r_j); w_k <- w_k + the share q_k of G of largest
magnitude. The cosine stands for the Shapley value of cos(u_C, u_N), which it approximates.

Known to hold: beta -> infinity gives all the same model, that of federated averaging with
updates of equal length and weights r.

Deviations, and what the sources leave open. A client goes on from its rewarded model and
never keeps what it trained, as in the authors' code. The server measures Delta_k and its
length, so that no client chooses its own. The share is kept per layer, which is one array,
as in the code (the paper: over the whole vector): ceil(q n) of n entries with ties to the
lowest. The code keeps all ties, and never a layer's smallest entry, so that arrays of one
entry are left out. beta is 2 as in FedAKD's comparison; the paper sweeps 0.5 to 2 and 1e7.
The scripts' decay of the learning rate inside a round and optimisers that live for ever are
left out. FedAKD's own version (plain mean of updates, own update kept for scoring) is
another method.
"""

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from fedsuite.method import Arrays, ClientReply, Vector, examples_of
from fedsuite.strategies.reward.reputation import (
    CommonUpdateKeys,
    RewardStrategy,
    cosine,
    merged,
    normalised,
    reward_shares,
    shares_of,
    smoothed,
)


def total_update(updates: Sequence[Vector], weights: Vector) -> Vector:
    """Return sum_k omega_k u_k, added up in the order given."""
    total = np.zeros_like(updates[0])
    for update, weight in zip(updates, weights.tolist(), strict=True):
        total += weight * update
    return total


class CGSV(CommonUpdateKeys, RewardStrategy):
    """Clients get a share of the common update that grows with their agreement with it."""

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        client_ids = [reply.client_id for reply in replies]
        old = self.old_shares(client_ids)
        updates = [
            normalised(update, self.update_length)
            for update in self.updates_of(arrays, replies)
        ]
        weights = old if old.any() else shares_of(examples_of(replies))
        total = total_update(updates, weights)
        angles = np.array([cosine(update, total) for update in updates])
        new = smoothed(old, angles, self.reputation_memory)
        shares = reward_shares(new, self.altruism)
        reputation = merged(self.reputation, client_ids, new)
        return self.reward_models(arrays, replies, reputation, total, shares)
