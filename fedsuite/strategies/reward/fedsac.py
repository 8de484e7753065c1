"""FedSAC: each client trains and gets a part of the network, the larger the better it is.

Z. Wang, Zh. Wang, L. Lyu, Z. Peng, Z. Yang, C. Wen, R. Yu, C. Wang, X. Fan, "FedSAC:
Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning", KDD 2024,
arXiv:2405.18291.

The authors' repository holds no code, and we have read no more of the paper than its
abstract: what follows is that of an unofficial port which agrees with the abstract. Call
results "FedSAC (our reading)".

Equations used. r_k = 100 exp(beta c_k) / max_j exp(beta c_j), c_k a contribution in 0..1.
A neuron is a row of a hidden layer's matrix (an output channel of a convolution) with all
that belongs to it: bias, and scale and shift of a normalisation behind it. Its importance
is I_v = max(0, L - L_0), L_0 the model's validation loss and L that without the neuron,
scaled to a sum of 100; all 0 counts as equal. Client k's submodel has the neurons from the
least important up, as long as their sum is at most r_k. Aggregation is by neuron: the plain
mean over the clients that held it; one that nobody held stays.

Known to hold: beta = 0 gives all the whole model: FedAvg with equal weights. A client with
more contribution holds all neurons that one with less holds.

What the sources leave open, and how it is settled:

- c_k "is" the accuracy of training alone. On which data is not said; FedAKD's text wants
  standalone results in one place and a validation set in another. Test data would decide
  who gets what, and then judge it. So, when a client first takes part, it trains the
  initial model alone for ``fedsac_alone_epochs`` passes, and c_k is the accuracy of the
  result on the server's validation data. 20 passes are FedAKD's budget of Standalone.
  Whoever has contributions already can hand them in.
- Which neurons come first: the port, and the abstract's words on crucial neurons for high
  contributors, say the least important; FedAKD's script says the most, and counts neurons
  in place of importance. It is the least here, and a neuron that would lead beyond r_k is
  left out, where the port takes it.
- Importance is measured after the first round, in which all hold the whole model, and then
  every ``fedsac_interval`` rounds, by removing one neuron at a time: a pass over the
  validation data for each. The port speaks of a Taylor score; its code does this.
- Masks are sent, never guessed from zeros. Absent neurons get no gradient, so they stay
  zero; columns that read from them are left alone. The classifier, and layers of several
  matrices, are in every submodel. A neuron's running statistics are averaged over those
  that held it, too: the others' are those of a channel that is always zero.
- Submodels travel in the shapes of the whole model; ``reward_share`` says how much of it.
- A model without a hidden layer has nothing to allocate: that is an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Unpack

import numpy as np

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, Value
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ALONE, ARRAYS, HELD, Arrays, ConfigValue
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.aggregation import WeightedMean
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.options import StrategyOptions
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.validation import ClientReply, Expected, spec_of
from fedsuite.strategies.reward.neurons import (
    WHOLE,
    HeldMean,
    Mask,
    NeuronLayer,
    held_neurons,
    hidden_layers,
    masks_of,
    scaled_importance,
    submodel,
)
from fedsuite.strategies.reward.reputation import (
    VALIDATION_DEFAULTS,
    RewardStrategy,
    Validation,
    check_values,
)

BETA = Key(
    "fedsac-beta",
    2.0,
    "how much more of the network FedSAC's better clients get; 0 gives all the whole",
    minimum=0.0,
    maximum=700.0,
)
INTERVAL = Key(
    "fedsac-interval",
    10,
    "rounds from one measurement of FedSAC's neurons to the next",
    minimum=1,
)
ALONE_EPOCHS = Key(
    "fedsac-alone-epochs",
    20,
    "passes over its data that a client trains alone, once, to show its contribution",
    minimum=1,
)


def reputations(contributions: Mapping[int, float], beta: float) -> dict[int, float]:
    """Return r_k of each client, 0 to 100."""
    best = max(contributions.values(), default=0.0)
    return {k: WHOLE * float(np.exp(beta * (c - best))) for k, c in contributions.items()}


class FedSAC(RewardStrategy):
    """Clients train and are scored with submodels of the server's model.

    Parameters
    ----------
    groups
        Groups of the model's arrays.
    validation
        Scores models on the server.
    contributions
        Client to contribution c_k in 0..1, where it is known; others are measured.
    fedsac_beta
        Beta: how much more the better clients get; 0 gives all the whole model.
    fedsac_interval
        Rounds from one measurement of importance to the next.
    fedsac_alone_epochs
        Passes of training alone to measure a contribution.
    options
        Keywords of :class:`~fedsuite.rounds.base.FederatedStrategy`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedSACClient", "leaves absent neurons alone"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (BETA, INTERVAL, ALONE_EPOCHS)
    DEFAULTS: ClassVar[Mapping[str, Value]] = VALIDATION_DEFAULTS
    NEEDS_GROUPS: ClassVar[bool] = True
    NEEDS_VALIDATION: ClassVar[bool] = True

    def __init__(
        self,
        *,
        groups: ParameterGroups,
        validation: Validation,
        contributions: Mapping[int, float] | None = None,
        fedsac_beta: float = 2.0,
        fedsac_interval: int = 10,
        fedsac_alone_epochs: int = 20,
        **options: Unpack[StrategyOptions],
    ) -> None:
        check_values(
            (BETA, fedsac_beta),
            (INTERVAL, fedsac_interval),
            (ALONE_EPOCHS, fedsac_alone_epochs),
        )
        super().__init__(**options)
        self.groups = groups
        self.validation = validation
        self.contributions = dict(contributions or {})
        self.beta = fedsac_beta
        self.interval = fedsac_interval
        self.alone_epochs = fedsac_alone_epochs
        self.importance: Vector | None = None
        self.counted_rounds = 0
        self._held: dict[int, dict[str, Mask]] = {}

    # ---------------------------------------------------------------------------- exchange

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Measure contributions that are not known yet; send each client its submodel."""
        # A model that cannot be divided is refused before anybody trains.
        self.layers_of(arrays)
        if not self.initial:
            self.initial = dict(arrays)
        self._measure_contributions(client_ids)
        known = [k for k in client_ids if k in self.contributions]
        exchange = super().train_exchange(arrays, known)
        self._held = self.held_rows(arrays, known)
        own = {
            k: {**records, HELD: _bytes(self._held[k])}
            for k, records in exchange.own.items()
        }
        return replace(exchange, own=own)

    def own_records(
        self, arrays: Arrays, client_ids: Iterable[int]
    ) -> dict[int, dict[str, Arrays]]:
        """Return each client's submodel, or the initial model if it never took part."""
        client_ids = list(client_ids)
        held = self.held_rows(arrays, client_ids)
        first = self.initial or arrays
        return {
            k: {ARRAYS: submodel(arrays, held[k]) if k in held else first}
            for k in client_ids
        }

    def layers_of(self, arrays: Arrays) -> list[NeuronLayer]:
        """Return the model's layers of neurons."""
        layers = hidden_layers(self.groups, arrays)
        if not layers:
            raise ConfigError(
                "fedsac leaves out neurons of hidden layers, and the model has none: "
                "choose another model, and no factored layers"
            )
        return layers

    def held_rows(
        self, arrays: Arrays, client_ids: Iterable[int]
    ) -> dict[int, dict[str, Mask]]:
        """Return which rows of which arrays each client with a contribution holds.

        Before the neurons are first measured that is all of them.
        """
        layers = self.layers_of(arrays)
        whole = np.ones(sum(layer.size for layer in layers), dtype=np.bool_)
        reputation = reputations(self.contributions, self.beta)
        return {
            k: masks_of(
                layers,
                whole
                if self.importance is None
                else held_neurons(self.importance, reputation[k]),
            )
            for k in client_ids
            if k in reputation
        }

    def _measure_contributions(self, client_ids: Sequence[int]) -> None:
        """Let clients that are new train alone, and score the results on the server."""
        new = [k for k in client_ids if k not in self.contributions]
        if not new:
            return
        exchange = Exchange(
            ALONE,
            new,
            shared={ARRAYS: self.initial},
            config={"alone-epochs": self.alone_epochs},
            expected=Expected({ARRAYS: spec_of(self.initial)}),
        )
        # Few may be new: whether the round has enough clients shows when they train.
        with suppress(QuorumMissed):
            for reply in self.exchange(exchange):
                accuracy = self.validation.accuracy(reply.arrays[ARRAYS])
                self.contributions[reply.client_id] = accuracy

    # --------------------------------------------------------------------------- aggregate

    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        """Average each neuron over the clients that held it, the rest over all."""
        neurons, rest = HeldMean(), WeightedMean()
        for reply in replies:
            masks = self._held[reply.client_id]
            neurons.add(reply.arrays[ARRAYS], masks)
            others = {n: a for n, a in reply.arrays[ARRAYS].items() if n not in masks}
            rest.add(others, 1.0)
        means = {**neurons.result(arrays), **(rest.result() or {})}
        shares = [_share(arrays, self._held[reply.client_id]) for reply in replies]
        scores = reputations(self.contributions, self.beta)
        reputation = {k: score / WHOLE for k, score in scores.items()}
        self.record(replies, reputation, np.array(shares))
        return {name: means[name] for name in arrays}

    def commit(self, arrays: Arrays) -> None:
        """Measure the neurons of the new model, if it is time."""
        super().commit(arrays)
        if self.counted_rounds % self.interval == 0:
            self.importance = self.measured_importance(arrays)
        self.counted_rounds += 1

    def measured_importance(self, arrays: Arrays) -> Vector:
        """Return the importance of each neuron of a model, by removing it."""
        losses = []
        for layer in self.layers_of(arrays):
            for neuron in range(layer.size):
                rest = np.arange(layer.size) != neuron
                without = submodel(arrays, dict.fromkeys(layer.names, rest))
                losses.append(self.validation.loss(without))
        return scaled_importance(np.array(losses), self.validation.loss(arrays))

    # ------------------------------------------------------------------------------- state

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return contributions, importance, and the number of rounds that counted."""
        arrays, scalars = super().state()
        for k, value in self.contributions.items():
            arrays[f"contribution/{k}"] = np.array(value)
        if self.importance is not None:
            arrays["importance/"] = self.importance
        return arrays, {**scalars, "counted-rounds": self.counted_rounds}

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take them back."""
        rest = dict(arrays)
        self.importance = rest.pop("importance/", None)
        self.contributions = {}
        for key in [key for key in rest if key.startswith("contribution/")]:
            self.contributions[int(key.partition("/")[2])] = float(rest.pop(key))
        rounds = scalars["counted-rounds"]
        assert isinstance(rounds, int)
        self.counted_rounds = rounds
        super().restore(rest, scalars)


def _bytes(masks: Mapping[str, Mask]) -> Arrays:
    return {name: mask.astype(np.uint8) for name, mask in masks.items()}


def _share(arrays: Arrays, masks: Mapping[str, Mask]) -> float:
    """Return the share of a model's entries that a submodel holds."""
    whole = sum(array.size for array in arrays.values())
    absent = sum(
        arrays[name].size * (1 - float(mask.mean())) for name, mask in masks.items()
    )
    return 1 - absent / whole
