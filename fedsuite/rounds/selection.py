"""Who is asked to train, of those who may be.

- ``uniform``: all alike.
- ``by-examples``: in proportion to the training rows.
- ``power-of-choice``: Y. J. Cho, J. Wang, G. Joshi, "Client Selection in Federated
  Learning", arXiv:2010.01243, in the form rpow-d: of d clients drawn by their rows those
  with the largest losses in their last training; who never trained comes first.
- ``oort``: F. Lai, X. Zhu, H. Madhyastha, M. Chowdhury, "Oort: Efficient Federated Learning
  via Guided Participant Selection", OSDI 2021, arXiv:2010.06081, Algorithm 1. Some of the
  clients are drawn among those of the largest utility

      U_k = n_k l_k,   times (T / t_k)^2 where t_k > T,

  and the others, fewer with time, among those who never trained, in proportion to their
  devices' speed. Deviations: l_k is the mean loss of training, where the paper has the root
  of the mean square; U_k is divided by its 95th percentile before what grows with the
  rounds since k trained is added; T is a percentile of the known durations, which the pacer
  raises, and without ``devices`` speed does not count.
- ``round-robin``: who was asked least often, so that a client that was away catches up.

What a client claims moves how often it is asked within ``selection-ratio``: none is asked
more often than so many times the mean of all.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import RunError
from fedsuite.core.rng import numpy_stream
from fedsuite.rounds.round_settings import Way
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply
from fedsuite.rounds.virtual_clock import VirtualClock

LOSS = "loss"
BY_LOSS = ("power-of-choice", "oort")
"""Ways that look at what clients tell of their training."""

PENALTY, CUT_OFF, CLIPPED_AT = 2.0, 0.95, 95.0
FIRST_SHARE, DECAY, LEAST_SHARE = 0.9, 0.98, 0.2
"""Share of a round for clients that never trained: at first, its factor, and the least."""

FIRST_PERCENTILE, PACE, PACE_ROUNDS = 30.0, 5.0, 20
"""Percentile of durations that is preferred, its step, and rounds between two steps."""


def drawn(
    client_ids: Sequence[int],
    weights: Sequence[float],
    count: int,
    stream: np.random.Generator,
) -> list[int]:
    """Draw clients without replacement in proportion to weights, in the order drawn.

    Parameters
    ----------
    client_ids, weights
        The clients, and a weight >= 0 of each; those of weight 0 come last.
    count
        How many to draw; as many as there are, or more, takes all.
    stream
        Source of the draws: one number a client.
    """
    # The smallest of exponential clocks rings first: P. Efraimidis, P. Spirakis,
    # "Weighted random sampling with a reservoir", 2006.
    rings = stream.exponential(size=len(client_ids))
    with np.errstate(divide="ignore"):
        order = np.lexsort((rings, rings / np.asarray(weights, dtype=np.float64)))
    return [client_ids[place] for place in order[:count]]


def largest(client_ids: Sequence[int], numbers: Sequence[float], count: int) -> list[int]:
    """Return the clients of the largest numbers; of equal ones who comes first."""
    order = np.argsort(-np.asarray(numbers, dtype=np.float64), kind="stable")
    return [client_ids[place] for place in order[:count]]


def utility(
    examples: float, loss: float, seconds: float = 0.0, preferred: float = math.inf
) -> float:
    """Return Oort's utility of a client.

    Parameters
    ----------
    examples, loss
        Its rows, and the mean loss of its training, >= 0.
    seconds, preferred
        How long an exchange takes it, and how long it may take without a penalty.
    """
    late = (preferred / seconds) ** PENALTY if seconds > preferred else 1.0
    return examples * loss * late


def within_share(
    client_ids: Sequence[int],
    asked: Mapping[int, int],
    count: int,
    num_clients: int,
    ratio: float,
) -> list[int]:
    """Return the clients that may be asked once more, in their order.

    Parameters
    ----------
    client_ids
        The candidates.
    asked
        Client to how often it was asked.
    count
        How many are asked now. Where fewer may be, those asked least often join.
    num_clients
        Number of clients over which the mean is.
    ratio
        Times of the mean that a client may be asked, or once.
    """
    mean = (sum(asked.values()) + count) / num_clients
    most = max(1.0, ratio * mean)
    allowed = {k for k in client_ids if asked.get(k, 0) + 1 <= most}
    others = sorted((k for k in client_ids if k not in allowed), key=lambda k: asked[k])
    allowed.update(others[: max(count - len(allowed), 0)])
    return [k for k in client_ids if k in allowed]


class Selection(Stage):
    """Draws who is asked, and remembers what that depends on.

    Parameters
    ----------
    way
        One of the ways but ``uniform``.
    seed
        Seed of the draws.
    candidates
        Clients d of power-of-choice, of which the round's are chosen.
    ratio
        Most times of the mean that a client is asked; infinity is no limit.
    sizes
        Client to its rows, where the server knows them.
    clock
        The clock of a rehearsed world; None without one.
    """

    name: ClassVar[str] = "selection"

    def __init__(
        self,
        way: Way,
        seed: int,
        candidates: int,
        ratio: float,
        sizes: Callable[[], Mapping[int, float]],
        clock: VirtualClock | None,
    ) -> None:
        self._way, self._seed = way, seed
        self._candidates, self._ratio = candidates, ratio
        self._sizes, self._clock = sizes, clock
        self.asked: dict[int, int] = {}
        self.losses: dict[int, float] = {}
        self.examples: dict[int, float] = {}
        self.trained: dict[int, int] = {}
        self._utilities: list[float] = []
        self._percentile = FIRST_PERCENTILE
        self._round = 0
        self._heard = self._told_loss = 0
        self._told: dict[int, float] = {}

    def draw(
        self, client_ids: Sequence[int], count: int, server_round: int, num_clients: int
    ) -> list[int]:
        """Return the clients that are asked in a round, sorted.

        Parameters
        ----------
        client_ids
            Those who may be, sorted.
        count
            How many to ask.
        server_round
            The round, of the stream of draws.
        num_clients
            Number of clients of the federation.
        """
        self._round = server_round
        self._told = {}
        if count < len(client_ids):
            allowed = list(client_ids)
            if self._way in BY_LOSS:
                asked, ratio = self.asked, self._ratio
                allowed = within_share(client_ids, asked, count, num_clients, ratio)
            stream = numpy_stream(self._seed, "selection", server_round)
            chosen = sorted(self._chosen(allowed, count, stream))
        else:
            chosen = list(client_ids)
        for client_id in chosen:
            self.asked[client_id] = self.asked.get(client_id, 0) + 1
        return chosen

    def _chosen(
        self, client_ids: list[int], count: int, stream: np.random.Generator
    ) -> list[int]:
        if self._way == "round-robin":
            shuffled = [client_ids[k] for k in stream.permutation(len(client_ids))]
            return largest(shuffled, [-self.asked.get(k, 0) for k in shuffled], count)
        if self._way == "oort":
            return self._by_utility(client_ids, count, stream)
        rows = self._rows_of(client_ids)
        if self._way == "by-examples":
            return drawn(client_ids, rows, count, stream)
        candidates = drawn(client_ids, rows, max(self._candidates, count), stream)
        losses = [self.losses.get(k, math.inf) for k in candidates]
        return largest(candidates, losses, count)

    def _rows_of(self, client_ids: Sequence[int]) -> list[float]:
        """Return the rows of clients; of one of unknown size the mean of the known."""
        known = {**self.examples, **self._sizes()}
        usual = sum(known.values()) / len(known) if known else 1.0
        return [float(known.get(k, usual)) for k in client_ids]

    def _by_utility(
        self, client_ids: Sequence[int], count: int, stream: np.random.Generator
    ) -> list[int]:
        new = [k for k in client_ids if k not in self.trained]
        known = [k for k in client_ids if k in self.trained]
        share = max(FIRST_SHARE * DECAY ** (self._round - 1), LEAST_SHARE)
        explored = max(min(round(share * count), len(new)), count - len(known))
        speeds = [1.0] * len(new)
        if self._clock is not None:
            speeds = [self._clock.world.device(k).speed for k in new]
        chosen = drawn(new, speeds, explored, stream)
        worth = self._worth(known)
        self._pace(worth)
        wanted = count - explored
        if not wanted:
            return chosen
        least = CUT_OFF * sorted(worth.values(), reverse=True)[wanted - 1]
        best = [k for k in known if worth[k] >= least]
        return [*chosen, *drawn(best, [worth[k] for k in best], wanted, stream)]

    def _worth(self, known: Sequence[int]) -> dict[int, float]:
        """Return the utility of clients that have trained, 1 at its 95th percentile."""
        durations = {} if self._clock is None else self._clock.durations
        times = [durations[k] for k in known if k in durations]
        preferred = math.inf
        if times and self._percentile < 100:
            preferred = float(np.percentile(times, self._percentile))
        plain = {k: utility(self.examples[k], self.losses[k]) for k in known}
        clip = float(np.percentile([*plain.values()], CLIPPED_AT)) if plain else 0.0
        worth = {}
        for k in known:
            ago = math.sqrt(0.1 * math.log(max(self._round, 1)) / self.trained[k])
            statistical = min(plain[k] / clip, 1.0) + ago if clip else ago
            worth[k] = utility(1.0, statistical, durations.get(k, 0.0), preferred)
        return worth

    def _pace(self, worth: Mapping[int, float]) -> None:
        """Allow longer durations where utility falls."""
        self._utilities = [*self._utilities, sum(worth.values())][-2 * PACE_ROUNDS :]
        if self._round % PACE_ROUNDS or len(self._utilities) < 2 * PACE_ROUNDS:
            return
        before, after = self._utilities[:PACE_ROUNDS], self._utilities[PACE_ROUNDS:]
        if sum(after) < sum(before):
            self._percentile = min(self._percentile + PACE, 100.0)

    def hear(self, reply: ClientReply) -> None:
        """Note the loss that a reply to an earlier exchange of the round tells, if any."""
        if LOSS in reply.metrics:
            self._told[reply.client_id] = reply.metrics[LOSS]

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        client_id = reply.client_id
        loss = reply.metrics.get(LOSS, self._told.get(client_id))
        self._heard += 1
        self._told_loss += loss is not None
        # Who tells none is not asked first for it.
        self.losses[client_id] = max(loss, 0.0) if loss is not None else 0.0
        self.examples[client_id] = reply.num_examples
        self.trained[client_id] = max(self._round, 1)
        return (reply,)

    @override
    def rest(self) -> Iterable[ClientReply]:
        if self._way in BY_LOSS and self._heard and not self._told_loss:
            raise RunError(
                f"selection = {self._way!r}: no client tells the metric {LOSS!r} of its "
                "training: choose another way, or report it"
            )
        return ()

    @override
    def state(self) -> State:
        of_clients = {
            name: {str(k): value for k, value in getattr(self, name).items()}
            for name in ("asked", "losses", "examples", "trained")
        }
        return {**of_clients, "utilities": self._utilities, "percentile": self._percentile}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        for name, kind in (("asked", int), ("losses", float), ("examples", float)):
            setattr(self, name, {int(k): kind(v) for k, v in state[name].items()})
        self.trained = {int(k): int(v) for k, v in state["trained"].items()}
        self._utilities = [float(value) for value in state["utilities"]]
        self._percentile = float(state["percentile"])
