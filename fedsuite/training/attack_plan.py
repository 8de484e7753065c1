"""Planned lies of clients, to ask in simulation what dishonest ones could do.

The liars are drawn once per experiment, from a stream of their own. So the same clients lie
in every engine and round, and a larger share adds liars to those of a smaller one. A liar
answers every message in time and in the right form; what it says of its evaluation is true,
so that scores measure the attack.

What a liar sends, with x its honest update, c the key ``attack-strength``:

- ``sign-flip``: -c x, 1 by default; ``scale``: c x, 10 by default.
- ``label-flip``: what it learns from labels y -> K - 1 - y, honestly reported.
- ``lie-examples``: c as its number of examples, 1,000,000 by default.
- ``lie-loss``: c as each of its training losses, 10 by default.
- ``canary``: c times a direction of its own, drawn once, 1 by default.
- ``alie``: mu - c sigma; ``ipm``: -c mu, 2 by default. Mu and sigma are mean and standard
  deviation of the honest updates of the same exchange, by coordinate.

Canaries do no harm. They are the last clients, beside those that divide the data, and show
in the model how much one client leaves there: ``fedsuite analyse privacy`` looks for their
directions. A canary holds another client's rows, so that it looks like any.

Liars of the first six know their own data alone. Those of the last two know all honest
replies of the round before they answer: more than a real one would, so that what withstands
them withstands those who know less. They are played between clients and server, in
:mod:`fedsuite.running.collusion`.

Where a record holds no trained model but gradients, logits or tables, x is the record.
Integers and statistics of normalisation layers stay as they are.

Sign flip and scaling: E. Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS
2020, arXiv:1807.00459. ALIE: G. Baruch, M. Baruch, Y. Goldberg, "A Little Is Enough:
Circumventing Defenses For Distributed Learning", NeurIPS 2019, arXiv:1902.06156. Its z is 0
for few clients: auto is that z, but at least 1.5. IPM: C. Xie, S. Koyejo, I. Gupta, "Fall
of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019,
arXiv:1903.03936. Canaries: G. Andrew et al., "One-shot Empirical Privacy Estimation for
Federated Learning", ICLR 2024, arXiv:2302.03098.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.core.keys import AUTO, Unless, With
from fedsuite.core.rng import numpy_stream
from fedsuite.core.rules import Rule
from fedsuite.core.settings import Settings, given, key
from fedsuite.core.vectors import Vector, norm
from fedsuite.data import Split
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    LOSS_AFTER,
    LOSS_BEFORE,
    LOSSES,
    NUM_EXAMPLES,
    SHARES,
    Arrays,
    Reply,
    Request,
    is_model_record,
)
from fedsuite.messages.statistics import buffers_declared, is_statistic
from fedsuite.training.app import Answering

STRENGTHS: Mapping[str, float] = {
    "sign-flip": 1.0,
    "scale": 10.0,
    "canary": 1.0,
    "alie": 1.5,
    "ipm": 2.0,
    "lie-examples": 1e6,
    "lie-loss": 10.0,
}
"""What ``auto`` is for each attack that has a strength; of alie the least value."""

COLLUSION = ("alie", "ipm")
"""Attacks whose liars know the honest replies of the round."""

_LOSSES = ("loss", LOSS_BEFORE, LOSS_AFTER)


def num_liars(share: float, num_clients: int) -> int:
    """Return how many of the clients a share is, rounded."""
    return int(np.floor(share * num_clients + 0.5))


class AttackPlan(Settings):
    """Which clients lie, and how."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("attackers", "attack", "num-clients"),
            (
                Unless("attack", "none"),
                Unless("attackers", 0.0),
                Unless("num-clients", 0),
                lambda values: not num_liars(values["attackers"], values["num-clients"]),
            ),
            "that is nobody",
            lambda values: f"give {0.5 / values['num-clients']:g} or more, or 0",
        ),
        Rule(
            ("attack", "dataset"),
            (With("attack", "label-flip"), With("dataset", "reddit")),
            "its rows have no class to flip",
            "choose another attack",
        ),
        Rule(
            ("attackers", "attack", "num-clients"),
            (
                With("attack", "canary"),
                lambda values: (
                    0
                    < values["num-clients"]
                    <= num_liars(values["attackers"], values["num-clients"])
                ),
            ),
            "nobody is left to hold the data",
            "give less",
        ),
    )

    attack: Literal[
        "none",
        "sign-flip",
        "scale",
        "canary",
        "alie",
        "ipm",
        "label-flip",
        "lie-examples",
        "lie-loss",
    ] = key(
        default="none",
        help="what dishonest clients of a simulation do; none has no such clients",
    )
    attackers: float = key(
        default=0.2,
        help="share of the clients that are dishonest, rounded; 0 is nobody",
        minimum=0.0,
        maximum=1.0,
        needs=(Unless("attack", "none"),),
    )
    attack_strength: float | Literal["auto"] = key(
        default="auto",
        help="how much they overdo it: factor of the update (sign-flip 1, scale 10, "
        "ipm 2), length (canary 1), standard deviations (alie 1.5 or more), or the number "
        "claimed (lie-examples 1,000,000, lie-loss 10); auto is the number in brackets",
        above=0.0,
        needs=tuple(With("attack", attack) for attack in STRENGTHS),
    )
    seed: int = given(default=0, help="seed of the experiment")
    num_clients: int = given(default=0, help="number of clients, of which some lie")

    @override
    def values(self) -> dict[str, Any]:
        return {**super().values(), "num-clients": self.num_clients}

    def __bool__(self) -> bool:
        return self.attack != "none"

    def liars(self) -> frozenset[int]:
        """Return the clients that lie."""
        if not self:
            return frozenset()
        count = num_liars(self.attackers, self.num_clients)
        if self.attack == "canary":
            return frozenset(range(self.num_clients - count, self.num_clients))
        order = numpy_stream(self.seed, "attackers").permutation(self.num_clients)
        return frozenset(order[:count].tolist())

    @property
    def num_canaries(self) -> int:
        """Number of clients beside those that divide the data."""
        return len(self.liars()) if self.attack == "canary" else 0

    @property
    def strength(self) -> float:
        """Strength of the attack; of alie the least one."""
        if self.attack_strength == AUTO:
            return STRENGTHS.get(self.attack, 1.0)
        return float(self.attack_strength)

    def deviations(self, num_clients: int, num_liars: int) -> float:
        """Return alie's z in a round with so many clients, so many of them liars."""
        if self.attack_strength != AUTO:
            return self.strength
        return max(alie_deviations(num_clients, num_liars), self.strength)

    def lie(
        self,
        reply: Reply,
        received: Mapping[str, Arrays],
        trained: Collection[str],
        client_id: int = 0,
    ) -> Reply:
        """Return what a liar says instead of an honest reply to anything but evaluation.

        Parameters
        ----------
        reply
            The honest reply.
        received
            Records that the client got.
        trained
            Records of the reply that hold the received model after training, beside those
            of several models.
        client_id
            The liar, which decides a canary's direction.
        """
        metrics, arrays = dict(reply.metrics), dict(reply.arrays)
        if self.attack == "lie-examples" and NUM_EXAMPLES in metrics:
            metrics[NUM_EXAMPLES] = round(self.strength)
        elif self.attack == "lie-loss":
            metrics |= {name: self.strength for name in _LOSSES if name in metrics}
            if claimed := arrays.get(LOSSES):
                # Zeros stand for batches that there is no data for.
                arrays[LOSSES] = {
                    name: np.where(losses > 0, self.strength, losses)
                    for name, losses in claimed.items()
                }
        elif self.attack in ("sign-flip", "scale", "canary"):
            factor = -self.strength if self.attack == "sign-flip" else self.strength
            for name, record in arrays.items():
                if name == SHARES:
                    # Turned, they would be no shares, and refused at sight.
                    continue
                one_of_several = name if is_model_record(name) else ""
                origin = ARRAYS if name in trained else one_of_several
                start = received.get(origin, {})
                if self.attack == "canary":
                    direction = canary_direction(self.seed, client_id, record)
                    arrays[name] = moved(record, start, direction, factor)
                else:
                    arrays[name] = scaled(record, start, factor)
        return replace(reply, arrays=arrays, metrics=metrics)


def scaled(record: Arrays, start: Arrays, factor: float) -> Arrays:
    """Return a record whose distance from ``start``, 0 where missing, is multiplied."""
    arrays = dict(record)
    for name, array in record.items():
        if not is_statistic(name, array):
            origin = np.asarray(start.get(name, 0.0), dtype=np.float64)
            arrays[name] = cast(origin + factor * (array - origin), array)
    return arrays


def canary_direction(seed: int, client_id: int, like: Arrays) -> dict[str, Vector]:
    """Return a canary's direction, uniform on the sphere and of length 1.

    Parameters
    ----------
    seed
        Seed of the experiment.
    client_id
        The canary; numbers of no client give directions that were never used.
    like
        Arrays of the model. Integers and statistics have no part in it.
    """
    stream = numpy_stream(seed, "canary", 0, client_id)
    parts = {
        name: stream.standard_normal(like[name].shape)
        for name in sorted(like)
        if not is_statistic(name, like[name])
    }
    length = norm(*parts.values()) or 1.0
    return {name: part / length for name, part in parts.items()}


def moved(
    record: Arrays, start: Arrays, direction: Mapping[str, Vector], length: float
) -> Arrays:
    """Return a record whose distance from ``start``, 0 where missing, is a direction's."""
    arrays = dict(record)
    for name, part in direction.items():
        origin = np.asarray(start.get(name, 0.0), dtype=np.float64)
        arrays[name] = cast(origin + length * part, record[name])
    return arrays


def cast(values: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    """Return values in an array's dtype; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return values.astype(like.dtype)


def flipped(split: Split, num_classes: int) -> Split:
    """Return rows whose label y is K - 1 - y."""
    return replace(split, labels=num_classes - 1 - split.labels)


def alie_deviations(num_clients: int, num_liars: int) -> float:
    """Return z of ALIE: how far liars may go while they still look like a majority.

    With n clients and f liars s = floor(n / 2) + 1 - f honest ones must lie further out:
    z = Phi^-1((n - f - s) / (n - f)). 0 where there is no such z above 0.
    """
    honest = num_clients - num_liars
    supporters = num_clients // 2 + 1 - num_liars
    if honest <= 0 or not 0 < supporters < honest:
        return 0.0
    return max(NormalDist().inv_cdf((honest - supporters) / honest), 0.0)


class LyingClient:
    """A client that says what the plan has it say.

    Parameters
    ----------
    client
        The client as it would be.
    plan
        The plan.
    trained
        Records of its replies that hold the received model after training.
    buffers
        Names of its model's buffers, which it leaves alone.
    """

    def __init__(
        self,
        client: Answering,
        plan: AttackPlan,
        trained: Collection[str],
        buffers: Collection[str] = (),
    ) -> None:
        self._client = client
        self._plan = plan
        self._trained = trained
        self._buffers = buffers

    def answer(self, request: Request) -> Reply:
        """Answer a request: an evaluation honestly, all else as planned."""
        reply = self._client.answer(request)
        if request.message_type.partition(".")[0] == EVALUATE:
            return reply
        with buffers_declared(self._buffers):
            return self._plan.lie(reply, request.arrays, self._trained, request.client_id)
