"""The arithmetic of noise at the server, as pure functions.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent
Language Models", ICLR 2018, arXiv:1710.06963: a clipped sum over a fixed denominator.
G. Andrew, O. Thakkar, H. B. McMahan, S. Ramaswamy, "Differentially Private Learning with
Adaptive Clipping", NeurIPS 2021, arXiv:1905.03871: a norm that follows a quantile.

Gaussian noise of floating-point numbers has known gaps (I. Mironov, CCS 2012), which
nothing here closes.
"""

import math
import os

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.vectors import Vector


def system_gaussian(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return standard normal numbers made of the operating system's randomness.

    No seed repeats them, because whoever can repeat the noise can take it off.
    """
    from scipy.special import ndtri

    bits = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64)
    # 52 bits and a half: strictly between 0 and 1, and exact in float64.
    uniform = ((bits >> np.uint64(12)) + 0.5) * 2.0**-52
    normal: NDArray[np.float64] = ndtri(uniform).reshape(shape)
    return normal


def clip_scale(norm: float, clip: float) -> float:
    """Return min(1, clip / norm); 0 for a norm that is not finite, 1 for norm 0."""
    if not math.isfinite(norm):
        return 0.0
    return clip / max(norm, clip)


def capped_shares(log_weights: Vector, cap: float) -> Vector:
    r"""Return min(cap, l r_i) with the l at which the shares sum to 1.

    Where so few clients cannot reach 1, each gets the cap, and the sum is less. That keeps
    the bound of 2 cap on what one client more or less moves, which dividing by the sum
    would break.

    Parameters
    ----------
    log_weights
        :math:`\log r_i` ``[clients]``, finite; each of one client's reply alone.
    cap
        In (0, 1].
    """
    count = len(log_weights)
    if count * cap <= 1.0:
        return np.full(count, cap)
    order = np.argsort(-log_weights, kind="stable")
    shares = np.zeros(count)
    for capped in range(count):
        rest = log_weights[order[capped:]]
        parts = np.exp(rest - rest[0])
        parts *= (1.0 - capped * cap) / parts.sum()
        if parts[0] <= cap:
            shares[order[capped:]] = parts
            break
        shares[order[capped]] = cap
    return shares


def adapted_clip(clip: float, share: float, quantile: float, rate: float) -> float:
    """Return the clipping norm of the next round.

    Parameters
    ----------
    clip
        Norm of this round.
    share
        Noised share of the updates whose norm was within it: more than ``quantile`` says
        that it is too large.
    quantile, rate
        Wanted share, and step of the logarithm.
    """
    return clip * math.exp(-rate * (share - quantile))


def multiplier_beside_count(noise_multiplier: float, count_noise: float) -> float:
    """Return the noise multiplier of the model where a noised count is released beside it.

    Each client moves the centred count by a half, so the count's multiplier is twice its
    standard deviation, and both together cost what ``noise_multiplier`` alone does.

    Raises
    ------
    ValueError
        If the count alone costs more.
    """
    rest = noise_multiplier**-2 - (2.0 * count_noise) ** -2
    if rest <= 0:
        raise ValueError(
            f"dp_count_noise = {count_noise:g}: expected more than half the noise "
            f"multiplier {noise_multiplier:g}, or the count alone spends it all"
        )
    return float(rest**-0.5)
