"""Noise at the server, at the level of clients, with an epsilon.

    w_{t+1} = w_t + eta (sum_{i in S} clip(x_i, C) + N(0, (z C)^2 I)) / m

x_i is a client's whole change of the floating-point arrays, statistics of normalisation
layers among them; counters stay as they are. The denominator m is fixed beforehand, so a
lost reply changes nothing in what one client can move. An empty round releases noise.

Methods with weights p_i by losses release sum p_i clip(x_i, C) + N(0, (2 z c C)^2 I), with
p_i <= c: a client that comes or goes changes its own part by p_i C at most, and the others'
weights, which then all move one way, by p_i C in sum.

What follows a release costs nothing: momentum, server rate, checkpoints, evaluation.
"""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.logs import ServerLogger
from fedsuite.core.rng import numpy_stream
from fedsuite.core.vectors import Vector, norm
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.messages.statistics import is_statistic, is_variance
from fedsuite.rounds.epsilon import Accounting, check_library
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.noised_mean import (
    adapted_clip,
    capped_shares,
    clip_scale,
    multiplier_beside_count,
    system_gaussian,
)
from fedsuite.rounds.release_ledger import ReleaseLedger
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply

logger = ServerLogger(__name__)


class LogWeights(Protocol):
    """Gives the logarithms of weights, each from one reply alone."""

    def __call__(self, replies: Sequence[ClientReply], /) -> Vector:
        """Return one finite number a reply."""


class CentralPrivacy(Stage):
    """Draws a round's clients, clips, sums, adds noise, and keeps the account.

    Parameters
    ----------
    keys
        The keys, one of which asks for noise.
    seed
        Seed of the public groups; it decides neither samples nor noise.
    log_weights
        Logarithms of the weights before the cap, for a method that gives some; None for
        equal weights.
    """

    name: ClassVar[str] = "privacy"

    def __init__(
        self, keys: RoundSettings, seed: int, log_weights: LogWeights | None
    ) -> None:
        self._keys = keys
        self._seed = seed
        self._log_weights = log_weights
        self._weighed: list[ClientReply] = []
        self.clip = keys.dp_clipping_norm
        self.ledger = ReleaseLedger()
        self.plan: Accounting | None = None
        self._roster: list[int] = []
        self._sent: Arrays = {}
        self._total: Arrays = {}
        self._whole = 0.0
        self._answered = 0
        self._told_newcomers = False
        self.metrics: dict[str, float] = {}

    # ----------------------------------------------------------------------- who takes part

    def open_account(
        self, client_ids: Sequence[int], per_round: int, num_rounds: int
    ) -> None:
        """Fix what the accounting rests on: the clients, their number in a round, noise.

        Only the first call of a run does something.

        Raises
        ------
        ConfigError
            If the numbers cannot be accounted for.
        """
        if self.plan is not None:
            return
        self._roster = self._roster or list(client_ids)
        keys, count = self._keys, len(self._roster)
        if keys.dp_delta * count >= 1:
            raise ConfigError(
                f"key dp-delta = {keys.dp_delta:g}: expected less than 1 / {count}, one "
                "over the number of clients: above it one client may be shown whole"
            )
        noise = keys.dp_noise_multiplier or float(
            self.ledger.last.get("noise_multiplier", 0)
        )
        plan = Accounting(
            keys.dp_sampling, noise or 1.0, count, min(per_round, count), keys.dp_delta
        )
        if plan.samples:
            check_library()
        if not noise:
            noise = self._solved(plan, num_rounds)
        self._adopt(plan, noise)

    def _solved(self, plan: Accounting, num_rounds: int) -> float:
        if num_rounds < 1:
            raise ConfigError("key target-epsilon needs the number of rounds: call start()")
        visits = plan.most_visits(num_rounds)
        return plan.noise_for(self._keys.target_epsilon, visits)

    def _adopt(self, plan: Accounting, noise: float) -> None:
        spent = self.ledger.last.get("noise_multiplier", noise)
        if spent != noise:
            raise RunError(
                f"the ledger counts releases with noise multiplier {spent:g}, and the run "
                f"has {noise:g}: go on with the same, or start a new run"
            )
        self.plan = Accounting(
            plan.sampling, noise, plan.num_clients, plan.clients_per_round, plan.delta
        )
        self._model_multiplier = noise
        self._count_noise = self._keys.dp_count_noise or plan.clients_per_round / 20
        if self._keys.dp_adaptive_clipping:
            try:
                self._model_multiplier = multiplier_beside_count(noise, self._count_noise)
            except ValueError as error:
                raise ConfigError(f"{error}: set dp-count-noise higher") from error

    def _opened(self) -> Accounting:
        if self.plan is None:
            raise RuntimeError("open_account() comes first")
        return self.plan

    def draw(self, client_ids: Sequence[int], server_round: int) -> list[int]:
        """Return the clients of a round, sorted; a sample by coins may be empty.

        Raises
        ------
        RunError
            If the round would pass the limit.
        """
        plan = self._opened()
        if reason := self.exhausted(server_round):
            raise RunError(f"round {server_round}: {reason}")
        self._note_newcomers(client_ids)
        if not plan.samples:
            stream = numpy_stream(self._seed, "dp-cycles")
            order = stream.permutation(self._roster).tolist()
            return sorted(order[self._group(server_round) :: plan.groups])
        # A sample that a seed repeats is no secret.
        system = random.SystemRandom()
        if plan.sampling == "poisson":
            return [k for k in self._roster if system.random() < plan.rate]
        return sorted(system.sample(self._roster, plan.clients_per_round))

    def _group(self, server_round: int) -> int:
        plan = self._opened()
        return 0 if plan.samples else (server_round - 1) % plan.groups

    def _note_newcomers(self, client_ids: Sequence[int]) -> None:
        strangers = set(client_ids) - set(self._roster)
        if strangers and not self._told_newcomers:
            self._told_newcomers = True
            logger.warning(
                "%d clients came after the first round and take no part: the accounting "
                "rests on the %d of the first round",
                len(strangers),
                len(self._roster),
            )

    # --------------------------------------------------------------------- what is released

    @override
    def ask(self, exchange: Exchange) -> Exchange:
        """Note what is sent to train.

        Raises
        ------
        RuntimeError
            If it is not one shared model that comes back, which the method's class says.
        """
        if exchange.own or set(exchange.expected.arrays) != {ARRAYS}:
            raise RuntimeError(
                "the method's PRIVACY says that it releases the mean of one shared model, "
                "and its messages say otherwise"
            )
        sent, back = exchange.shared[ARRAYS], exchange.expected.arrays[ARRAYS]
        self._sent = {name: sent[name] for name in back}
        return exchange

    @override
    def open(self, exchange: Exchange) -> None:
        self._total = {n: np.zeros(a.shape) for n, a in self._released(self._sent).items()}
        self._whole, self._answered = 0.0, 0
        self._weighed = []

    def take(self, reply: ClientReply) -> None:
        """Clip an update and add it up; where there are weights, hold it until all came."""
        if self._log_weights is None:
            self._add(reply, 1.0)
        elif reply.num_examples > 0:
            self._weighed.append(reply)

    def _add_weighed(self, log_weights: LogWeights) -> None:
        taken, self._weighed = self._weighed, []
        if not taken:
            return
        logarithms = np.clip(log_weights(taken), -1e300, 1e300)
        shares = capped_shares(logarithms, self._keys.dp_max_weight)
        for reply, share in zip(taken, shares, strict=True):
            self._add(reply, float(share))

    def _add(self, reply: ClientReply, weight: float) -> None:
        arrays = reply.arrays[ARRAYS]
        with np.errstate(over="ignore", invalid="ignore"):
            change = {
                name: np.subtract(arrays[name], self._sent[name], dtype=np.float64)
                for name in self._total
            }
        scale = clip_scale(norm(*change.values()), self.clip)
        self._answered += 1
        self._whole += float(scale == 1.0)
        if scale == 0.0:
            return
        for name, total in self._total.items():
            total += (weight * scale) * change[name]

    @staticmethod
    def _released(arrays: Arrays) -> Arrays:
        """Return the arrays that are released; counters are not."""
        return {n: array for n, array in arrays.items() if array.dtype.kind == "f"}

    def release(self, arrays: Arrays, server_round: int, rate: float) -> Arrays:
        """Write the release down, then return the new model.

        Parameters
        ----------
        arrays
            The global arrays, those that did not travel among them.
        rate
            Server learning rate, of all but statistics.
        """
        if self._log_weights is not None:
            self._add_weighed(self._log_weights)
        plan, group, clip = self._opened(), self._group(server_round), self.clip
        spent = plan.epsilon(self.ledger.visits(group))
        self.metrics = {
            "epsilon": spent,
            "delta": plan.delta,
            "noise_multiplier": plan.noise_multiplier,
            "clip": clip,
            "clipped_share": 1.0 - self._share_whole(),
        }
        entry: dict[str, Any] = {"round": server_round, **self.metrics}
        entry["sentence"] = self._sentence(spent, self.ledger.releases + 1)
        self.ledger.add(group, entry)
        logger.tell("%s", entry["sentence"])
        weighted = self._log_weights is not None
        moves = 2 * self._keys.dp_max_weight if weighted else 1.0
        divisor = 1.0 if weighted else float(plan.clients_per_round)
        deviation = self._model_multiplier * moves * clip
        moved: Arrays = {}
        for name, total in self._total.items():
            noised = total + deviation * system_gaussian(total.shape)
            sent = self._sent[name]
            measured = is_statistic(name, sent)
            new = sent + (1.0 if measured else rate) / divisor * noised
            # A mean begins with 0 everywhere, and may become negative.
            if is_variance(name) or (measured and sent.any() and sent.min() >= 0):
                new = np.maximum(new, 0.0)
            moved[name] = np.asarray(new).astype(sent.dtype)
        self._total = {}
        return {**arrays, **moved}

    def _share_whole(self) -> float:
        """Return the share of updates within the norm, and adapt the norm to it."""
        keys, plan = self._keys, self._opened()
        if not keys.dp_adaptive_clipping:
            return self._whole / self._answered if self._answered else 1.0
        centred = self._whole - self._answered / 2
        centred += self._count_noise * float(system_gaussian(()))
        share = 0.5 + centred / plan.clients_per_round
        self.clip = adapted_clip(
            self.clip, share, keys.dp_clipping_quantile, keys.dp_clipping_rate
        )
        return share

    # -------------------------------------------------------------------------- the account

    def exhausted(self, server_round: int) -> str:
        """Return why a round would pass the limit; empty if it would not."""
        keys = self._keys
        limits = {
            "dp-epsilon-max": keys.dp_epsilon_max,
            "target-epsilon": keys.target_epsilon,
        }
        name = min((n for n in limits if limits[n]), key=limits.__getitem__, default="")
        if not name or self.plan is None:
            return ""
        limit = limits[name]
        spends = self.plan.epsilon(self.ledger.visits(self._group(server_round)))
        if spends <= limit:
            return ""
        return (
            f"one more release would spend epsilon {spends:.4g}, more than "
            f"{name} = {limit:g}"
        )

    def _sentence(self, spent: float, releases: int) -> str:
        plan = self._opened()
        rounded = math.ceil(1000 * spent) / 1000
        return (
            f"privacy: epsilon {rounded:g} at delta {plan.delta:g} after {releases} "
            f"release{'s' * (releases > 1)} ({plan.words}). Covers the sequence of this "
            "run's models, not metrics, logs or client rows, and no other run on the same "
            "clients."
        )

    @override
    def state(self) -> State:
        if self.plan is None:
            return {}
        return {
            "noise_multiplier": self.plan.noise_multiplier,
            "clients_per_round": self.plan.clients_per_round,
            "roster": self._roster,
            "clip": self.clip,
            "counts": {str(group): n for group, n in self.ledger.counts.items()},
        }

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` returned.

        Raises
        ------
        RunError
            If the ledger has fewer releases.
        """
        if not state:
            return
        self.ledger.recall({int(group): n for group, n in state["counts"].items()})
        self._roster, self.clip = list(state["roster"]), float(state["clip"])
        keys = self._keys
        size, noise = len(self._roster), float(state["noise_multiplier"])
        plan = Accounting(
            keys.dp_sampling, noise, size, state["clients_per_round"], keys.dp_delta
        )
        self._adopt(plan, noise)
