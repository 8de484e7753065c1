"""Epsilon of noised rounds at the level of clients, and the noise for a wanted epsilon.

What is released in a round is a sum of clipped updates, each of norm C at most, with
Gaussian noise of standard deviation z C. The privacy spent depends on who was drawn:

- ``poisson``: each client by its own coin of probability q = m / N, kept secret. Neighbours
  differ by one client more or less. Numerical composition of privacy losses (A. Koskela,
  J. Jälkö, A. Honkela, AISTATS 2020; S. Meiser, E. Mohammadi, CCS 2018).
- ``fixed``: m of N without replacement, kept secret. Neighbours differ by one client
  replaced, which moves the sum by 2 C: the multiplier handed over is z / 2. Renyi
  accounting (Y.-X. Wang, B. Balle, S. P. Kasiviswanathan, AISTATS 2019).
- ``cycles``: public groups in turn; nothing is secret. A client takes part in k rounds,
  which is one Gaussian mechanism of multiplier z / sqrt(k), whose curve is known exactly
  (B. Balle, Y.-X. Wang, ICML 2018). All clients in each round are one such group.

The first two are accounted by Google's dp-accounting, the extra ``dp``.
"""

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Literal

from fedsuite.core.errors import ConfigError
from fedsuite.core.extras import how_to_install

Sampling = Literal["poisson", "fixed", "cycles"]

_GRID = 1e-3
"""Step of the grid of privacy losses; a coarser one gives a larger epsilon, never less."""

_LIBRARY = "dp-accounting"


@dataclass(frozen=True)
class Accounting:
    """What decides the privacy that rounds spend.

    Parameters
    ----------
    sampling
        How a round's clients are drawn.
    noise_multiplier
        z: standard deviation of the noise over what one client more or less can move; > 0.
    num_clients, clients_per_round
        N, and m of 1 to N.
    delta
        In (0, 1).
    """

    sampling: Sampling
    noise_multiplier: float
    num_clients: int
    clients_per_round: int
    delta: float

    @property
    def rate(self) -> float:
        """Share q = m / N of the clients in a round."""
        return self.clients_per_round / self.num_clients

    @property
    def groups(self) -> int:
        """Number of public groups that take turns."""
        return -(-self.num_clients // self.clients_per_round)

    @property
    def samples(self) -> bool:
        """Whether a secret sample helps."""
        return self.sampling != "cycles" and self.clients_per_round < self.num_clients

    def most_visits(self, rounds: int) -> int:
        """Return how often a client takes part in so many rounds, at most."""
        return rounds if self.samples else -(-rounds // self.groups)

    def epsilon(self, visits: int) -> float:
        """Return the epsilon after the releases that a client may have taken part in.

        Parameters
        ----------
        visits
            All releases where the sample is secret, else those of the client's group.
        """
        return _spent(self, visits) if visits else 0.0

    @property
    def words(self) -> str:
        """Relation, sampling and accountant, for the sentence of a report."""
        if not self.samples:
            who = "all clients" if self.groups == 1 else f"{self.groups} public groups"
            return f"client level, add or remove one; {who}; exact Gaussian composition"
        library = f"{_LIBRARY} {version(_LIBRARY)}"
        if self.sampling == "poisson":
            drawn = f"add or remove one; secret Poisson sample q = {self.rate:g}; PLD"
        else:
            of = f"{self.clients_per_round} of {self.num_clients}"
            drawn = f"replace one; secret sample of {of}; RDP"
        return f"client level, {drawn}, {library}"

    def noise_for(self, epsilon: float, visits: int) -> float:
        """Return the least noise multiplier, to 1 in 1,000, that stays within an epsilon.

        Raises
        ------
        ConfigError
            If none below a million does.
        """
        from scipy.optimize import brentq

        def excess(logarithm: float) -> float:
            spends = self._spends(math.exp(logarithm), visits)
            return math.log(max(spends, 1e-300) / epsilon)

        high = 0.0
        while excess(high) > 0:
            high += math.log(2)
            if high > math.log(1e6):
                raise ConfigError(
                    f"key target-epsilon = {epsilon:g}: no noise multiplier below 1e6 "
                    "reaches it: raise it, or give fewer rounds"
                )
        low = high - math.log(2)
        while excess(low) <= 0 and low > math.log(1e-3):
            low -= math.log(2)
        if excess(low) <= 0:
            return math.exp(low)
        log_epsilon = float(brentq(excess, low, high, xtol=2e-4))
        while excess(log_epsilon) > 0:
            log_epsilon += 2e-4
        return math.exp(log_epsilon)

    def _spends(self, noise_multiplier: float, visits: int) -> float:
        return replace(self, noise_multiplier=noise_multiplier).epsilon(visits)


def check_library() -> None:
    """Raise ConfigError where dp-accounting is missing."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError(
            "key dp-sampling: a secret sample is accounted by dp-accounting: "
            f'{how_to_install("dp_accounting")}, or set dp-sampling = "cycles"'
        )


def gaussian_epsilon(mu: float, delta: float) -> float:
    r"""Return the epsilon of Gaussian mechanisms whose multipliers give mu.

    The least :math:`\epsilon \ge 0` with :math:`\Phi(\mu/2 - \epsilon/\mu) - e^\epsilon
    \Phi(-\mu/2 - \epsilon/\mu) \le \delta`.

    Parameters
    ----------
    mu
        Square root of the sum of 1 / z^2 over the releases, > 0.
    delta
        In (0, 1).
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def excess(epsilon: float) -> float:
        above = log_ndtr(mu / 2 - epsilon / mu)
        below = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(math.exp(above) - math.exp(min(below, above))) - delta

    if excess(0.0) <= 0:
        return 0.0
    upper = 1.0
    while excess(upper) > 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-12))


@lru_cache(maxsize=64)
def _spent(plan: Accounting, visits: int) -> float:
    if not plan.samples:
        return gaussian_epsilon(math.sqrt(visits) / plan.noise_multiplier, plan.delta)
    check_library()
    if plan.sampling == "poisson":
        base = _poisson_losses(plan.noise_multiplier, plan.rate)
        return float(base.self_compose(visits).get_epsilon_for_delta(plan.delta))
    return _fixed_epsilon(plan, visits)


@lru_cache(maxsize=8)
def _poisson_losses(noise_multiplier: float, rate: float) -> Any:
    """Return the distribution of the privacy loss of one release."""
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=_GRID
    )


def _fixed_epsilon(plan: Accounting, visits: int) -> float:
    import dp_accounting
    from dp_accounting import rdp

    # The library's multiplier is over what its relation moves: replacing one moves 2 C.
    noise = dp_accounting.GaussianDpEvent(plan.noise_multiplier / 2)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        plan.num_clients, plan.clients_per_round, noise
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    with _quiet():
        accountant = rdp.RdpAccountant(neighboring_relation=relation)
        accountant.compose(event, visits)
        return float(accountant.get_epsilon(plan.delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's warnings about orders that it leaves out."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
