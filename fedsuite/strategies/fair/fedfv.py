"""FedFV: federated learning with fair averaging.

Z. Wang, X. Fan, J. Qi, C. Wen, C. Wang, R. Yu, "Federated Learning with Fair Averaging",
IJCAI 2021, arXiv:2104.14937.

With g_k = w_t - w_k, clients in order of rising loss before training, and the share alpha
of them with the largest losses left untouched:

1. Internal conflicts (Algorithm 2): each other client's g_i is projected in turn onto the
   normal plane of every g_j with <g_i, g_j> < 0,  g_i <- g_i - <g_i, g_j> / ||g_j||^2 g_j,
   j in that order, g_j always as it came; g = mean of the results.
2. External conflicts (Algorithm 3), from round tau + 1: for the rounds t - tau ... t - 1,
   oldest first, the updates of the clients last seen then and absent now that conflict with
   g are summed; if the sum conflicts with g, g is projected onto its normal plane.
3. w_{t+1} = w_t - g ||mean of g_k|| / ||g||  (Algorithm 1).

Deviations: the untouched clients are those from position ceil((m - 1)(1 - alpha)) of the
order on, as in the authors' code; ties of losses go by client id. The tau rounds of the
authors' code begin with the current one and its own clients: ``fedfv-history`` code. The
mean ignores numbers of examples. Where g is shorter than a millionth of its new length it
is rounding, and the model stays. Past updates are kept in float32. A part of the model that
did not travel in a past round (filter decomposition) counts as not moved then. Buffers are
averaged as in FedAvg and take no part in inner products.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.method import (
    Arrays,
    ClientReply,
    ConfigValue,
    LossStrategy,
    OneOf,
    Vector,
    client_updates,
    flatten,
    grouped,
    inner,
    joined,
    key,
    norm,
    parameter_names,
    state,
    take_step,
    unflatten,
)

History = Literal["paper", "code"]
Floats = NDArray[np.floating[Any]]

_ROUNDING = 1e-9
"""Keeps ceil(3.0000000000000004) at 3."""

_LOST = 1e-6
"""Share of the length below which a direction is rounding of the float32 models."""


def untouched_clients(losses: Vector, alpha: float) -> tuple[list[int], set[int]]:
    """Return the order of projection, and the untouched clients, a share ``alpha``."""
    order = [int(index) for index in np.argsort(losses, kind="stable")]
    if alpha == 0:
        return order, set()
    first = math.ceil((len(order) - 1) * (1 - alpha) - _ROUNDING)
    return order, set(order[first:])


def project_away(vector: Vector, other: Floats) -> Vector:
    """Return ``vector`` without its part against ``other``; itself if they agree."""
    product, square = inner(vector, other), inner(other, other)
    # The square of a tiny length may be 0 in floating point.
    if product >= 0 or square == 0:
        return vector
    return vector - product / square * other


def mitigate_internal_conflicts(updates: Vector, losses: Vector, alpha: float) -> Vector:
    """Return the mean of g_k ``[clients, parameters]``, freed of conflicts between clients.

    ``alpha`` is the share left untouched, of largest losses; 1 returns the plain mean.
    """
    order, untouched = untouched_clients(losses, alpha)
    total = np.zeros(updates.shape[1])
    for client, update in enumerate(updates):
        projected = update
        if client not in untouched:
            for other in order:
                if other != client:
                    projected = project_away(projected, updates[other])
        total += projected
    return total / len(updates)


def mitigate_external_conflicts(
    mean: Vector, past_rounds: Iterable[Sequence[Floats]]
) -> Vector:
    """Return the mean update, freed of conflicts with past updates, oldest round first."""
    for updates in past_rounds:
        conflicting = [update for update in updates if inner(mean, update) < 0]
        if conflicting:
            mean = project_away(mean, np.sum(conflicting, axis=0, dtype=np.float64))
    return mean


def rescale(vector: Vector, length: float) -> Vector:
    """Return ``vector`` at another length, or zeros where only rounding is left of it."""
    own = norm(vector)
    if own <= _LOST * length:
        return np.zeros_like(vector)
    return vector * (length / own)


class FedFV(LossStrategy):
    """Average of updates that no longer conflict."""

    fedfv_alpha: float = key(
        default=0.1,
        help="share of clients left untouched; 1 with tau 0 is FedAvg, equal weights",
        minimum=0.0,
        maximum=1.0,
        search=OneOf(0.0, 0.1, 0.2, 0.5),
    )
    fedfv_tau: int = key(
        default=1, help="past rounds heard; 0 is none", minimum=0, search=OneOf(0, 1, 3, 10)
    )
    fedfv_history: History = key(
        default="paper", help="rounds before this one, or this one too (authors' code)"
    )
    _past: dict[int, Arrays] = state(default_factory=dict)
    _last_seen: dict[int, int] = state(default_factory=dict)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        updates = client_updates(arrays, replies)
        for update, reply in zip(updates, replies, strict=True):
            self._past[reply.client_id] = unflatten(update.astype(np.float32), arrays)
            self._last_seen[reply.client_id] = self.server_round
        plain = updates.sum(axis=0) / len(updates)
        losses = self.losses_of(replies)
        mean = mitigate_internal_conflicts(updates, losses, self.fedfv_alpha)
        mean = mitigate_external_conflicts(mean, self._past_rounds(arrays))
        self._forget()
        self.round_metrics["update_norm"] = norm(plain)
        self.round_metrics["fair_cosine"] = _cosine(mean, plain)
        return take_step(arrays, rescale(mean, norm(plain)), replies)

    def _forget(self) -> None:
        """Drop the updates that no later round hears."""
        for client_id, seen in list(self._last_seen.items()):
            if seen <= self.server_round - self.fedfv_tau:
                del self._past[client_id], self._last_seen[client_id]

    def _past_rounds(self, arrays: Arrays) -> Iterable[Sequence[Floats]]:
        """Yield each heard round's updates of the arrays sent now, oldest round first."""
        still = {name: np.zeros_like(array) for name, array in arrays.items()}
        names = parameter_names(arrays)
        newest = self.server_round - (self.fedfv_history == "paper")
        if newest < self.fedfv_tau:
            return
        for server_round in range(newest - self.fedfv_tau + 1, newest + 1):
            yield [
                flatten({**still, **self._past[client_id]}, names)
                for client_id, seen in sorted(self._last_seen.items())
                if seen == server_round
            ]

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        clients = sorted(self._past)
        seen = [self._last_seen[k] for k in clients]
        return joined({k: self._past[k] for k in clients}), {
            "clients": clients,
            "last-seen": seen,
        }

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        clients, rounds = scalars["clients"], scalars["last-seen"]
        assert isinstance(clients, list) and isinstance(rounds, list)
        self._last_seen = dict(zip(map(int, clients), map(int, rounds), strict=True))
        groups = grouped(arrays)
        self._past = {
            client_id: groups.get(str(client_id), {}) for client_id in self._last_seen
        }


def _cosine(left: Vector, right: Vector) -> float:
    """Return the cosine between two vectors, 1 if one of them is zero."""
    lengths = norm(left) * norm(right)
    return inner(left, right) / lengths if lengths else 1.0
