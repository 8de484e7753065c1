"""What the server makes of a round's step: momentum, or a step of each parameter's own.

FedAvgM: T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", arXiv:1909.06335.

FedAdam, FedYogi, FedAdagrad: S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush,
J. Konecny, S. Kumar, H. B. McMahan, "Adaptive Federated Optimization", ICLR 2021,
arXiv:2003.00295.

Equations used, where s = x_{t+1} - x_t is the step that the method itself would take:

    sgd:      v <- beta v + s,    x_{t+1} = x_t + v
    nesterov: v <- beta v + s,    x_{t+1} = x_t + s + beta v
    adam:     u <- beta_2 u + (1 - beta_2) s^2,
    yogi:     u <- u - (1 - beta_2) s^2 sign(u - s^2),
    adagrad:  u <- u + s^2, and for all three
              m <- beta_1 m + (1 - beta_1) s,    x_{t+1} = x_t + eta m / (sqrt(u) + tau)

v, m and u are 0 at first. Unless given, beta_1 is 0.9, and 0 for adagrad.

Known to hold: sgd with beta = 0 is what the method makes, bit for bit. With beta_1 = 0 and
tau far above |s|, a step eta = tau of adam is the method's.

Deviations: m and u are not corrected for their start, and u starts at 0, where the paper
starts it at tau^2 or above. Statistics (:func:`is_statistic`) are left to the method:
extrapolated, a variance may turn negative.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.stage import Stage, State


@dataclass(frozen=True)
class Moments:
    """What the optimiser remembers of one array, in its shape and in float64.

    Parameters
    ----------
    mean
        v of momentum, m of the adaptive rules.
    square
        u of the adaptive rules; stays as it is with momentum.
    """

    mean: Vector
    square: Vector


def squares(keys: RoundSettings, old: Vector, step: Vector) -> Vector:
    """Return the new u of an adaptive rule, which is never negative if the old one is not.

    Parameters
    ----------
    keys
        The rule and beta_2.
    old, step
        u and s, of one shape.
    """
    fresh: Vector = step * step
    if keys.server_optimizer == "adagrad":
        return old + fresh
    share = 1.0 - keys.server_beta2
    if keys.server_optimizer == "yogi":
        moment: Vector = old - share * fresh * np.sign(old - fresh)
        return moment
    return keys.server_beta2 * old + share * fresh


def mean_share(keys: RoundSettings) -> float:
    """Return beta_1 of an adaptive rule."""
    if keys.server_beta1 != "auto":
        return keys.server_beta1
    return 0.0 if keys.server_optimizer == "adagrad" else 0.9


def server_step(
    keys: RoundSettings, step: Vector, known: Moments
) -> tuple[Vector, Moments]:
    """Return what the model moves by, and what the optimiser is to remember.

    Parameters
    ----------
    keys
        The rule and its numbers.
    step
        s, the step that the method itself would take, in float64.
    known
        What is remembered; zeros before the first step.
    """
    if keys.server_optimizer in ("sgd", "nesterov"):
        beta = keys.server_momentum
        mean = beta * known.mean + step
        move = mean if keys.server_optimizer == "sgd" else step + beta * mean
        return move, Moments(mean, known.square)
    beta = mean_share(keys)
    mean = beta * known.mean + (1.0 - beta) * step
    square = squares(keys, known.square, step)
    move = keys.server_adaptive_rate * mean / (np.sqrt(square) + keys.server_tau)
    return move, Moments(mean, square)


class ServerOptimizer(Stage):
    """The optimiser that the keys name, with what it remembers of each array.

    Parameters
    ----------
    keys
        A strategy, or the keys alone.
    """

    name: ClassVar[str] = "optimizer"

    def __init__(self, keys: RoundSettings) -> None:
        self.keys = keys
        self.moments: dict[str, Moments] = {}
        self._next: dict[str, Moments] = {}

    @override
    def ask(self, exchange: Exchange) -> Exchange:
        check_one_model(exchange)
        return exchange

    @override
    def step(self, old: Arrays, new: Arrays) -> Arrays:
        moved: Arrays = {}
        self._next = {}
        for name, array in new.items():
            if name not in old or is_statistic(name, array):
                moved[name] = array
                continue
            step = np.subtract(array, old[name], dtype=np.float64)
            zeros = np.zeros(step.shape)
            known = self.moments.get(name, Moments(zeros, zeros))
            move, self._next[name] = server_step(self.keys, step, known)
            moved[name] = (old[name] + move).astype(array.dtype)
        return moved

    @override
    def counted(self) -> None:
        self.moments = {**self.moments, **self._next}
        self._next = {}

    @override
    def state(self) -> State:
        moments = self.moments.items()
        squares = {n: known.square for n, known in moments if known.square.any()}
        return {"mean": {n: known.mean for n, known in moments}, "square": squares}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._next, squares = {}, state["square"]
        self.moments = {
            name: Moments(mean, squares.get(name, np.zeros(mean.shape)))
            for name, mean in state["mean"].items()
        }


def check_one_model(exchange: Exchange) -> None:
    """Refuse a message by which clients do not all train one model and send it back.

    Raises
    ------
    ConfigError
        Naming the keys that need such a message.
    """
    one_model = ARRAYS in exchange.shared and ARRAYS in exchange.expected.arrays
    own_models = any(ARRAYS in records for records in exchange.own.values())
    if own_models or not one_model:
        raise ConfigError(
            "server-momentum, server-optimizer and fedvarp need a method whose clients "
            "train a shared model and send it back: leave them off, or choose another "
            "method"
        )
