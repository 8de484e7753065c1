"""Base of methods that reward clients that contribute more with better models.

A client's *reputation* is its share of 1; its *reward* follows from it.

- A reward is sent to its client alone, which trains from it and is scored with it. A client
  without one, such as a late one, starts from the initial model of all.
- These methods assume that all clients take part in each round. Otherwise the round's
  clients share as much reputation as their number says: see :func:`merged`.
- A round that does not count (quorum missed, no examples, NaN in the new model) changes
  neither reputation nor reward, and clients that keep state start again from before it.
- The server's model is that of a client with all rewards.
- Statistics of normalisation layers are in no vector: the round's clients get the mean of
  theirs, weighted by examples.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    EVALUATE,
    NO_COMMON_STEP,
    OWN_RULE,
    Arrays,
    Between,
    ClientReply,
    ConfigValue,
    Declared,
    Exchange,
    GatheredStrategy,
    Release,
    Value,
    Vector,
    cast_like,
    examples_of,
    flatten,
    grouped,
    inner,
    joined,
    key,
    norm,
    parameter_names,
    state,
    top_k,
    weighted_mean,
)

VALIDATION_DEFAULTS: Mapping[str, Value] = {"server-validation-fraction": 0.1}
"""Defaults of methods that score models on the server, as in the papers."""

LEAST_REPUTATION = 1e-3
"""Least reputation, before division by the sum."""

NO_LENGTH = 1e-7
"""Added to an update's length before division by it."""

Records = Mapping[str, Arrays]


class Validation(Protocol):
    """Scores models on the server's own data."""

    def accuracy(self, arrays: Arrays) -> float:
        """Return a model's accuracy, a fraction."""

    def loss(self, arrays: Arrays) -> float:
        """Return a model's mean cross-entropy."""

    def batch_losses(self, arrays: Arrays, batch_size: int) -> Sequence[float]:
        """Return a model's mean cross-entropy on each mini-batch, in a fixed order."""


def shares_of(values: Vector) -> Vector:
    """Return values >= 0 as shares of 1; equal shares if all are 0."""
    total = values.sum()
    if total <= 0:
        return np.full(values.shape, 1.0 / values.size)
    shares: Vector = values / total
    return shares


def cosine(left: Vector, right: Vector) -> float:
    """Return the cosine of the angle between two vectors; 0 if one has no length."""
    lengths = norm(left) * norm(right)
    return inner(left, right) / lengths if lengths > 0 else 0.0


def normalised(update: Vector, length: float) -> Vector:
    """Return an update scaled to a length; one of nearly no length stays short."""
    return update * (length / (norm(update) + NO_LENGTH))


def smoothed(old: Vector, measured: Vector, memory: float) -> Vector:
    """Return new reputations, as shares of 1; ``memory`` is the share of the old ones."""
    return shares_of(np.maximum(memory * old + (1 - memory) * measured, LEAST_REPUTATION))


def reward_shares(reputation: Vector, altruism: float) -> Vector:
    """Return each client's share of the reward, tanh(beta r) / max, 0 to 1."""
    scaled = np.tanh(altruism * reputation)
    shares: Vector = scaled / scaled.max()
    return shares


def top_share(vector: Vector, sizes: Sequence[int], share: float) -> Vector:
    """Return a vector with the same share kept of each layer's entries, 0 elsewhere.

    Of a layer's n entries the ceil(share n) of largest magnitude stay; ``sizes`` has n.
    """
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    # The last bit of a share must not keep one entry more.
    kept = [top_k(part, int(np.ceil(share * part.size - 1e-9))) for part in parts]
    return np.concatenate(kept)


def merged(
    known: Mapping[int, float], client_ids: Sequence[int], shares: Vector
) -> dict[int, float]:
    """Return all clients' reputations, which sum to 1, after a round of some of them.

    The round's m clients divide m over the number of all clients by their ``shares``; the
    others keep what they have in proportion.
    """
    others = {k: value for k, value in known.items() if k not in set(client_ids)}
    total = sum(others.values())
    mass = len(client_ids) / (len(client_ids) + len(others)) if total > 0 else 1.0
    rest = {k: value * (1 - mass) / total for k, value in others.items() if total > 0}
    fresh = {k: float(s) * mass for k, s in zip(client_ids, shares, strict=True)}
    return dict(sorted({**dict.fromkeys(others, 0.0), **rest, **fresh}.items()))


def moved(arrays: Arrays, step: Vector, statistics: Arrays) -> Arrays:
    """Return a model after a step of its parameters, with other statistics."""
    new: Arrays = {}
    start = 0
    for name, array in arrays.items():
        if name in statistics:
            new[name] = statistics[name]
            continue
        part = step[start : start + array.size].reshape(array.shape)
        new[name] = cast_like(np.asarray(array, dtype=np.float64) + part, array.dtype)
        start += array.size
    return new


class CommonUpdateKeys(Declared):
    """Keys of CGSV and FedAVE, which hand out shares of one common update."""

    update_length: float = key(
        default=0.5,
        help="length Gamma that updates are scaled to",
        above=0.0,
        search=Between(0.05, 5.0),
    )
    reputation_memory: float = key(
        default=0.95, help="share of the old one kept; 0 forgets", minimum=0.0, maximum=1.0
    )
    altruism: float = key(
        default=2.0, help="near 0 follows reputation, 1e7 is equal", above=0.0, maximum=1e9
    )


class RewardStrategy(GatheredStrategy):
    """Keeps reputations, and what each client is sent; a method overrides ``combine``."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "each client gets a model of its own, by what it contributed",
    )

    OWN_MODELS: ClassVar[bool] = True
    NO_GLOBAL_MODEL: ClassVar[str] = "each client gets a model of its own"
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {**OWN_RULE, **NO_COMMON_STEP}

    NOT_LEGACY: ClassVar[str] = (
        "each client has a model of its own: use an app of the Message API"
    )

    reputation: dict[int, float] = state(default_factory=dict)
    rewards: dict[int, Records] = state(default_factory=dict)
    initial: Arrays = state(default_factory=dict)
    _staged: tuple[dict[int, float], dict[int, Records]] | None = state(
        default_factory=lambda: None
    )

    # ------------------------------------------------------------- for methods to override

    def own_records(
        self, arrays: Arrays, client_ids: Iterable[int]
    ) -> dict[int, dict[str, Arrays]]:
        """Return the records of each client's own model."""
        first = {ARRAYS: self.initial or arrays}
        return {k: dict(self.rewards.get(k, first)) for k in client_ids}

    # ----------------------------------------------------------------- for methods to use

    def stage(
        self, reputation: Mapping[int, float], rewards: Mapping[int, Records]
    ) -> None:
        """Note the round's result for :meth:`counted`; other clients' rewards stay."""
        self._staged = dict(reputation), {**self.rewards, **rewards}

    def old_shares(self, client_ids: Sequence[int]) -> Vector:
        """Return reputations, 0 for a new client; they sum to 1 unless all are 0."""
        old = np.array([self.reputation.get(k, 0.0) for k in client_ids])
        return shares_of(old) if old.any() else old

    def own_model(self, client_id: int, arrays: Arrays) -> Arrays:
        """Return the model that a client was sent."""
        return self.own_records(arrays, [client_id])[client_id][ARRAYS]

    def updates_of(self, arrays: Arrays, replies: Sequence[ClientReply]) -> list[Vector]:
        """Return what each client added to its own model, parameters only."""
        names = parameter_names(arrays)
        return [
            flatten(reply.arrays[ARRAYS], names)
            - flatten(self.own_model(reply.client_id, arrays), names)
            for reply in replies
        ]

    def reward_models(
        self,
        arrays: Arrays,
        replies: Sequence[ClientReply],
        reputation: Mapping[int, float],
        total: Vector,
        shares: Vector,
    ) -> Arrays:
        """Stage each client's share of the total update, and return the server's model.

        ``shares`` has for each reply the part, 0 to 1, of each layer of ``total`` that its
        client gets; ``reputation`` is that of all clients after the round.
        """
        sizes = [arrays[name].size for name in parameter_names(arrays)]
        statistics = mean_statistics(arrays, replies)
        rewards: dict[int, Records] = {}
        for reply, share in zip(replies, shares.tolist(), strict=True):
            k = reply.client_id
            part = top_share(total, sizes, share)
            model = moved(self.own_model(k, arrays), part, statistics)
            rewards[k] = {ARRAYS: model}
        self.stage(reputation, rewards)
        self.record(replies, reputation, shares)
        return moved(arrays, total, statistics)

    def record(
        self,
        replies: Sequence[ClientReply],
        reputation: Mapping[int, float],
        shares: Vector,
    ) -> None:
        """Report each client's reputation and share of the reward."""
        for reply, share in zip(replies, shares.tolist(), strict=True):
            k = reply.client_id
            values = {"reputation": reputation[k], "reward_share": share}
            self.annotate(k, **values)

    # --------------------------------------------------------------------------- machinery

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        if not self.initial:
            self.initial = dict(arrays)
        self._staged = None
        exchange = super().train_exchange(arrays, client_ids)
        return replace(exchange, shared={}, own=self.own_records(arrays, client_ids))

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        own = self.own_records(arrays, client_ids)
        return Exchange(EVALUATE, client_ids, own=own)

    @override
    def counted(self, arrays: Arrays) -> None:
        if self._staged is not None:
            self.reputation, self.rewards = self._staged

    @override
    def discarded(self) -> None:
        # Clients may have stored something: they are not to start there.
        self.client_versions = dict(self.start_versions)

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        reputation = {str(k): np.array(value) for k, value in self.reputation.items()}
        rewards = {k: joined(records) for k, records in self.rewards.items()}
        return joined({"initial": self.initial, "reputation": reputation, **rewards}), {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        groups = grouped(arrays)
        self.initial = groups.pop("initial", {})
        known = groups.pop("reputation", {})
        self.reputation = {int(k): float(value) for k, value in known.items()}
        self.rewards = {int(k): grouped(named) for k, named in groups.items()}


def mean_statistics(arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays:
    """Return the clients' mean statistics of normalisation layers."""
    names = [name for name in arrays if name not in set(parameter_names(arrays))]
    parts = ({name: r.arrays[ARRAYS][name] for name in names} for r in replies)
    return weighted_mean(parts, examples_of(replies).tolist()) or {}
