"""AAggFF: mixing weights by online convex optimisation, after what clients respond.

S. Hahn, G. Kim, M. Lee, "Pursuing Overall Welfare in Federated Learning through Sequential
Decision Making", ICML 2024, arXiv:2405.20821.

The server decides p in the simplex over all M clients; each round suffers the decision loss
-log(1 + <p, r>), r the responses. With the normal CDF, and means over the m clients of the
round: r_k = Phi(F_k / mean F - 1), F_k the loss before training.

Cross-device (AAggFF-D), with C = m / M: r <- C r, and r' is its doubly robust estimate for
all M, mean r + (r_k - mean r) / C for the clients of the round and mean r for the others:

    D = 1 + mean r,  g = -r' / D + mean r <p, r' - mean r> / D^2,
    p_k ~ exp(-sqrt(ln M) / ((2 + C) sqrt(t + 1)) sum_tau g_{tau,k}).

Cross-silo (AAggFF-S): r <- r / M, g = -r / (1 + <p, r>), an online Newton step,

    p <- argmin sum_tau <g_tau, p> + a/2 ||p||^2 + b/2 sum_tau <g_tau, p - p_tau>^2

over the simplex, a = 4, b = M / 4 (Lipschitz constant 1 / M), by scipy's SLSQP. Both
average the models of the round with the new p, normalised over it.

Deviations: the authors' code differs from these equations (its normal branch falls with the
loss; it leaves mean r out of r' for the clients of the round; it leaves p_tau out of the
Newton step); the equations are used. Of the CDFs there is the normal one only. In the
cross-silo setting a client that did not answer counts with the mean response. A client that
is new takes the mean of the others' sums. n_k never enters.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    SHARES_OF_PAPERS,
    Arrays,
    ClientReply,
    ConfigValue,
    LossStrategy,
    Value,
    Vector,
    key,
    share_ratio_key,
    state,
)
from fedsuite.strategies.fair.simplex import minimize_on_simplex

Setting = Literal["cross-device", "cross-silo"]


def normal_responses(losses: Vector) -> Vector:
    """Return Phi(F_k / mean F - 1), ``[clients]``: 1/2 at the mean loss, and for zeros."""
    largest = losses.max()
    if largest == 0:
        return np.full(len(losses), 0.5)
    relative = losses / largest
    excess = relative / relative.mean() - 1.0
    return np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in excess])


def device_gradient(decision: Vector, responses: Vector, answered: Sequence[int]) -> Vector:
    """Return the linearised gradient of the decision loss, ``[M]``.

    ``decision`` is p before the round, ``[M]``; ``answered`` are the positions in it of the
    clients with ``responses`` in (0, 1), ``[m]``.
    """
    fraction = len(responses) / len(decision)
    scaled = fraction * responses
    mean = float(scaled.mean())
    estimate = np.full(len(decision), mean)
    estimate[list(answered)] += (scaled - mean) / fraction
    divisor = 1.0 + mean * float(decision.sum())
    shift = float((decision * (estimate - mean)).sum())
    return mean * shift / divisor**2 - estimate / divisor


def device_decision(gradient_sum: Vector, fraction: float, num_updates: int) -> Vector:
    """Return p after t = ``num_updates`` >= 1 gradients, ``[M]``, all entries > 0.

    ``fraction`` is C, above 0 to 1.
    """
    rate = math.sqrt(math.log(len(gradient_sum))) / (2.0 + fraction)
    exponent = -rate / math.sqrt(num_updates + 1) * gradient_sum
    weights = np.exp(exponent - exponent.max())
    decision: Vector = weights / weights.sum()
    return decision


def silo_gradient(decision: Vector, responses: Vector) -> Vector:
    """Return the gradient of the decision loss, ``[M]``, with responses of all clients."""
    scaled = responses / len(responses)
    return -scaled / (1.0 + float((decision * scaled).sum()))


def silo_decision(
    gradient_sum: Vector, outer_sum: Vector, offset_sum: Vector, start: Vector
) -> Vector:
    """Return the p of the online Newton step, ``[M]``, solved for from ``start``.

    The sums are of g ``[M]``, of g g' ``[M, M]`` and of g <g, p_tau> ``[M]``.
    """
    count = len(start)
    weight = count / 4.0
    return minimize_on_simplex(
        4.0 * np.eye(count) + weight * outer_sum,
        gradient_sum - weight * offset_sum,
        start,
        np.zeros(count),
        np.ones(count),
    )


class AAggFF(LossStrategy):
    """Mean of the models with weights that the server learns online."""

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {}

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    max_share_ratio: float | str = share_ratio_key()

    aaggff_setting: Setting = key(
        default="cross-device", help="for rounds of some clients, or of all"
    )

    _clients: list[int] = state(default_factory=list)
    _memory: Arrays = state(default_factory=dict)
    _num_updates: int = state(default_factory=int)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        self._admit(self.members())
        position = {client_id: index for index, client_id in enumerate(self._clients)}
        answered = [position[reply.client_id] for reply in replies]
        responses = normal_responses(self.losses_of(replies))
        self._num_updates += 1
        if self.aaggff_setting == "cross-silo":
            self._decide_silo(responses, answered)
        else:
            self._decide_device(responses, answered)
        decision = self._memory["decision"]
        self.round_metrics["largest_to_least_weight"] = _ratio(decision)
        # Equal weights are exactly 1; where all are 0, clients count alike.
        weights = decision[answered]
        largest = weights.max()
        return self.average(replies, weights / largest if largest else weights + 1.0)

    @override
    def neutral_weight_of(self, reply: ClientReply) -> float:
        return 1.0

    def _decide_device(self, responses: Vector, answered: Sequence[int]) -> None:
        memory = self._memory
        gradient = device_gradient(memory["decision"], responses, answered)
        memory["gradients"] = memory["gradients"] + gradient
        fraction = len(answered) / len(gradient)
        memory["decision"] = device_decision(
            memory["gradients"], fraction, self._num_updates
        )

    def _decide_silo(self, responses: Vector, answered: Sequence[int]) -> None:
        memory = self._memory
        whole = np.full(len(self._clients), responses.mean())
        whole[list(answered)] = responses
        decision = memory["decision"]
        gradient = silo_gradient(decision, whole)
        product = float((gradient * decision).sum())
        memory["gradients"] = memory["gradients"] + gradient
        memory["outer"] = memory["outer"] + np.outer(gradient, gradient)
        memory["offsets"] = memory["offsets"] + product * gradient
        memory["decision"] = silo_decision(
            memory["gradients"], memory["outer"], memory["offsets"], decision
        )

    def _admit(self, client_ids: Sequence[int]) -> None:
        """Take in new clients, each as the mean of the known ones."""
        known = set(self._clients)
        new = [client_id for client_id in client_ids if client_id not in known]
        if not new:
            return
        old, count = self._memory, len(known)
        self._clients += new
        self._memory = memory = _empty_memory(len(self._clients), self.aaggff_setting)
        for name in ("gradients", "offsets"):
            if name in memory and count:
                memory[name] += old[name].mean()
                memory[name][:count] = old[name]
        if "outer" in memory:
            memory["outer"][:count, :count] = old.get("outer", 0.0)
        if count:
            memory["decision"][:count] = old["decision"] * (count / len(self._clients))

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        clients = np.array(self._clients, dtype=np.uint64)
        return {"clients": clients, **self._memory}, {"updates": self._num_updates}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self._clients = arrays["clients"].tolist()
        self._memory = {name: a for name, a in arrays.items() if name != "clients"}
        updates = scalars["updates"]
        assert isinstance(updates, int)
        self._num_updates = updates


def _empty_memory(num_clients: int, setting: Setting) -> Arrays:
    """Return the memory before the first round: equal weights, sums of 0."""
    memory: Arrays = {
        "decision": np.full(num_clients, 1.0 / num_clients),
        "gradients": np.zeros(num_clients),
    }
    if setting == "cross-silo":
        memory["offsets"] = np.zeros(num_clients)
        memory["outer"] = np.zeros((num_clients, num_clients))
    return memory


def _ratio(decision: Vector) -> float:
    """Return the largest weight over the least, which counts as 1e-12 at least."""
    return float(decision.max() / max(decision.min(), 1e-12))
