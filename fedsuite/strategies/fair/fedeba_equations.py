"""The equations of FedEBA+ as pure functions; :mod:`fedsuite.strategies.fair.fedeba` cites.

Equation, algorithm and remark numbers are the paper's. A client's *update* is its model
after local training minus the model that it received (it points downhill); a gradient
points uphill. Sums are in float64, in the order of the clients given.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedsuite.method import Arrays, Vector, weighted_mean, weighted_sum

Schedule = Literal["constant", "linear", "concave", "convex"]

SCHEDULES: Mapping[str, float] = {
    "constant": 0.0,
    "linear": 1.0,
    "concave": 0.5,
    "convex": 3.0,
}
"""Name of a temperature schedule to its exponent in Remark M.1."""


def entropy_weights(
    losses: ArrayLike, temperature: float, prior: ArrayLike | None = None
) -> Vector:
    r"""Return the weights of largest entropy, :math:`p_i \propto q_i e^{F_i / \tau}`.

    Eq. (4), with a prior Eq. (22). They sum to 1. Safe for losses of any size.

    Parameters
    ----------
    losses
        Finite, shape (n,).
    temperature
        :math:`\tau > 0`, in the unit of the losses. Large is the prior; towards 0 all
        weight goes to the largest loss.
    prior
        q >= 0, shape (n,), not all zero, of any sum. None is uniform.
    """
    values = _vector("losses", losses)
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: expected a number > 0")
    shares = np.ones_like(values) if prior is None else _vector("prior", prior)
    if shares.shape != values.shape or (shares < 0).any() or not shares.any():
        raise ValueError("prior: expected as many numbers >= 0 as losses, not all 0")
    possible = shares > 0
    weights = np.zeros_like(values)
    # The gap to the largest loss may overflow to -inf, whose exponential is the right 0.
    with np.errstate(over="ignore"):
        gaps = (values[possible] - values[possible].max()) / temperature
    exponents = gaps + np.log(shares[possible] / shares.max())
    weights[possible] = np.exp(exponents - exponents.max())
    normalised: Vector = weights / weights.sum()
    return normalised


def effective_clients(weights: ArrayLike) -> float:
    r"""Return :math:`1 / \sum_i p_i^2`: n for uniform weights, 1 if one client has all."""
    values = _vector("weights", weights)
    return float(values.sum() ** 2 / np.sum(values * values))


def fairness_angle(losses: ArrayLike) -> float:
    r"""Return the angle between losses >= 0 and the all-ones vector, in degrees.

    Section 4.3: :math:`\arccos \langle L, 1 \rangle / (\|L\| \|1\|)`, as the arc tangent of
    standard deviation over mean. Exactly 0 for equal losses, also for all zeros, which the
    paper leaves undefined; at most :math:`\arccos(1 / \sqrt n) < 90`.
    """
    values = _vector("losses", losses)
    if (values < 0).any():
        raise ValueError("losses: expected numbers >= 0")
    largest = float(values.max())
    if largest == 0.0:
        return 0.0
    scaled = values / largest
    mean = float(scaled.mean())
    spread = float(np.linalg.norm(scaled - mean))
    return math.degrees(math.atan2(spread, mean * math.sqrt(len(values))))


def fair_gradient(gradients: Iterable[Arrays], weights: ArrayLike) -> Arrays:
    r"""Return :math:`\tilde g = \sum_i \tilde p_i \nabla F_i(x_t)`, Eq. (10).

    The weights are :func:`entropy_weights` of the losses before training: this is then the
    gradient of :math:`\tau \log \sum_i e^{F_i / \tau}`.
    """
    total = weighted_mean(gradients, _vector("weights", weights).tolist())
    if total is None:
        raise ValueError("weights: expected at least one above 0")
    return total


def model_alignment(
    updates: Iterable[Arrays],
    first_steps: Iterable[Arrays],
    weights: ArrayLike,
    alpha: float,
    shares: ArrayLike | None = None,
) -> Arrays:
    r"""Return the update of the fair branch in float64, Eqs. (8) and (9).

    .. math:: \Delta_t = (1 - \alpha) \sum_i p_i \Delta_i + \alpha \sum_i s_i \delta_i

    ``first_steps`` are :math:`\delta_i`, what the first local step alone changed. Weights p
    and shares s sum to 1; None is s = 1 / n. Alpha is 0 (updates only) to 1 (first steps
    only).
    """
    _check_alpha(alpha)
    last = _vector("weights", weights)
    first = np.full_like(last, 1 / len(last)) if shares is None else _vector("s", shares)
    whole = weighted_sum(updates, (1 - alpha) * last)
    start = weighted_sum(first_steps, alpha * first)
    return {name: array + start[name] for name, array in whole.items()}


def practical_alignment(
    updates: Iterable[Arrays], weights: ArrayLike, fair_weights: ArrayLike, alpha: float
) -> Arrays:
    r"""Return the update of Prac-FedEBA+'s unfair branch in float64, Algorithm 3.

    .. math:: \Delta_t = \sum_i [(1 - \alpha) p_i + \alpha \tilde p_i] \Delta_i

    The paper's form has the mean gradient along each client's path; for plain SGD that is
    :math:`-\Delta_i / (\eta_L K)`, which gives this mixture of p and :math:`\tilde p`, from
    the losses after and before training. Alpha is 0 (p alone: FedEBA) to 1.
    """
    _check_alpha(alpha)
    after, before = _vector("weights", weights), _vector("fair_weights", fair_weights)
    return weighted_sum(updates, (1 - alpha) * after + alpha * before)


def temperature_at(server_round: int, initial: float, decay: float, schedule: str) -> float:
    r"""Return the temperature of a round t >= 1, Remark M.1.

    :math:`\tau_t = \tau_0 / (1 + \kappa (t - 1))^e` with e of :data:`SCHEDULES`, initial
    :math:`\tau_0 > 0` and decay :math:`\kappa \ge 0`. Eq. (188) prints the number of rounds
    where the current one is meant.
    """
    if schedule not in SCHEDULES:
        expected = ", ".join(SCHEDULES)
        raise ValueError(f"schedule = {schedule!r}: expected one of {expected}")
    if server_round < 1 or not decay >= 0 or not initial > 0:
        raise ValueError("expected server_round >= 1, decay >= 0 and initial > 0")
    return float(initial / (1.0 + decay * (server_round - 1)) ** SCHEDULES[schedule])


def temperature_for_clients(
    losses: ArrayLike, target: float, prior: ArrayLike | None = None
) -> float:
    r"""Return the temperature at which :math:`1 / \sum_i p_i^2` is ``target``, at least 1.

    The inverse of :func:`effective_clients` after :func:`entropy_weights`. It grows with
    the losses' scale: the weights do not depend on that scale. Infinite where all losses
    are equal, or where the prior alone amounts to no more than the target; a billionth of
    the losses' range where ties of the largest loss keep the number above the target.
    """
    from scipy.optimize import brentq

    values = _vector("losses", losses)
    scale = float(values.max()) - float(values.min())
    wanted = max(target, 1.0)

    def excess(inverse: float) -> float:
        return effective_clients(entropy_weights(values, scale / inverse, prior)) - wanted

    if scale == 0 or effective_clients(entropy_weights(values, math.inf, prior)) <= wanted:
        return math.inf
    lower, upper = 1e-9, 1.0
    if excess(lower) < 0:
        # Rounding alone put the prior above the target.
        return math.inf
    while excess(upper) > 0:
        if upper > 1e9:
            return scale / 1e9
        lower, upper = upper, 2 * upper
    return scale / float(brentq(excess, lower, upper, xtol=1e-15, rtol=1e-14))


def _vector(name: str, values: ArrayLike) -> Vector:
    """Return values as a vector of finite float64, or raise ValueError."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or len(vector) == 0 or not np.isfinite(vector).all():
        raise ValueError(f"{name}: expected at least one number, all finite")
    return vector


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha = {alpha}: expected 0 to 1")
