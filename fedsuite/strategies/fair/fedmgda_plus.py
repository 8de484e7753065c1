"""FedMGDA+: multi-objective optimisation, no client's loss is traded for another's.

Z. Hu, K. Shaloudegi, G. Zhang, Y. Yu, "Federated Learning Meets Multi-Objective
Optimization", IEEE TNSE 2022, arXiv:2006.11489.

With d_k = (w_t - w_k) / ||w_t - w_k|| (Algorithm 1, normalised), m clients in the round:

    lambda* = argmin ||sum_k lambda_k d_k||^2
              over the simplex with |lambda_k - 1/m| <= epsilon,
    w_{t+1} = w_t - eta sum_k lambda*_k d_k.

The programme is solved by scipy's SLSQP on the m x m matrix of inner products.

Deviations: a client whose model did not move has no direction and is left out of the round.
Buffers are averaged as in FedAvg and take no part in the inner products.
"""

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    Arrays,
    Between,
    ClientReply,
    GatheredStrategy,
    OneOf,
    Vector,
    by_client,
    client_updates,
    inner,
    key,
    norm,
    take_step,
)
from fedsuite.strategies.fair.simplex import minimize_on_simplex


def gram_matrix(directions: Vector) -> Vector:
    """Return the inner products of the rows of ``[clients, parameters]``."""
    count = len(directions)
    products = np.zeros((count, count))
    for row in range(count):
        for column in range(row + 1):
            products[row, column] = inner(directions[row], directions[column])
            products[column, row] = products[row, column]
    return products


def min_norm_weights(gram: Vector, epsilon: float) -> Vector:
    """Return the lambda of the shortest mixture of directions, ``[m]``, of sum 1.

    ``gram`` has the directions' inner products, of order 1. Entries are within ``epsilon``
    of 1 / m: 0 returns equal weights, 1 is the whole simplex. Of several solutions it is
    the one reached from equal weights.
    """
    count = len(gram)
    equal = np.full(count, 1.0 / count)
    if epsilon == 0 or count == 1:
        return equal
    low, high = np.maximum(equal - epsilon, 0.0), np.minimum(equal + epsilon, 1.0)
    return minimize_on_simplex(2.0 * gram, np.zeros(count), equal, low, high)


class FedMGDAPlus(GatheredStrategy):
    """A step of fixed length scale along the common descent direction."""

    fedmgda_epsilon: float = key(
        default=0.1,
        help="largest distance from equal weights; 0 is the mean of unit updates",
        minimum=0.0,
        maximum=1.0,
        search=OneOf(0.01, 0.05, 0.1, 0.5, 1.0),
    )
    fedmgda_step: float = key(
        default=1.0, help="length eta of the step", above=0.0, search=Between(0.3, 3.0)
    )
    fedmgda_step_decay: float = key(
        default=1.0, help="factor on the step per round; 1 is none", maximum=1.0, above=0.0
    )

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        updates = client_updates(arrays, replies)
        lengths = np.array([norm(update) for update in updates])
        moved = lengths > 0
        weights = np.zeros(len(replies))
        if moved.any():
            directions = updates[moved] / lengths[moved, np.newaxis]
            weights[moved] = min_norm_weights(gram_matrix(directions), self.fedmgda_epsilon)
            common = (weights[moved, np.newaxis] * directions).sum(axis=0)
        else:
            common = np.zeros(updates.shape[1])
        self.record_weights(by_client(replies, weights))
        self.round_metrics["common_direction_norm"] = norm(common)
        step = self.fedmgda_step * self.fedmgda_step_decay ** (self.server_round - 1)
        return take_step(arrays, step * common, replies)
