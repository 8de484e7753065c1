"""FedSAC: each client trains and gets a part of the network, the larger the better it is.

Z. Wang, Zh. Wang, L. Lyu, Z. Peng, Z. Yang, C. Wen, R. Yu, C. Wang, X. Fan, "FedSAC:
Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning", KDD 2024,
arXiv:2405.18291.

The authors' repository holds no code, and of the paper we have read the abstract alone:
what follows is an unofficial port that agrees with it. Call results "FedSAC (our reading)".

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

- c_k is the accuracy of training alone, on data that the sources do not name; test data
  would decide who gets what, and then judge it. When a client first takes part, it trains
  the initial model alone for ``fedsac_alone_epochs`` passes (20 are FedAKD's budget of
  Standalone), and c_k is the result's accuracy on the server's validation data. Known
  contributions can be given.
- The least important neurons come first, as in the port and the abstract (crucial neurons
  for high contributors); FedAKD's script takes the most important, and counts neurons, not
  importance. A neuron that would lead beyond r_k is left out; the port takes it.
- Importance is measured after the first round, in which all hold the whole model, and then
  every ``fedsac_interval`` rounds, by removing one neuron at a time: a pass over the
  validation data for each. The port speaks of a Taylor score; its code does this.
- Masks are sent, never guessed from zeros. Absent neurons get no gradient and stay zero;
  columns that read from them are left alone. The classifier, and layers of several
  matrices, are in every submodel. A neuron's running statistics are averaged over those
  that held it.
- Submodels travel in the shapes of the whole model; ``reward_share`` is the part held.
- A model without a hidden layer has nothing to allocate: that is an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ALONE,
    ARRAYS,
    HELD,
    Arrays,
    ClientNeeds,
    ClientReply,
    ConfigError,
    ConfigValue,
    Exchange,
    Expected,
    OneOf,
    Value,
    Vector,
    WeightedMean,
    given,
    key,
    part,
    spec_of,
    state,
)
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.quorum import QuorumMissed
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
)


def reputations(contributions: Mapping[int, float], beta: float) -> dict[int, float]:
    """Return r_k of each client, 0 to 100."""
    best = max(contributions.values(), default=0.0)
    return {k: WHOLE * float(np.exp(beta * (c - best))) for k, c in contributions.items()}


class FedSAC(RewardStrategy):
    """Clients train and are scored with submodels of the server's model."""

    READING: ClassVar[str] = "our reading of the abstract"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedSACClient", "leaves absent neurons alone"
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = VALIDATION_DEFAULTS

    fedsac_beta: float = key(
        default=2.0,
        help="how much better clients get more of the network; 0 gives all the whole",
        minimum=0.0,
        maximum=700.0,
        search=OneOf(1.0, 2.0, 5.0),
    )
    fedsac_interval: int = key(
        default=10, help="rounds between measurements of neurons", minimum=1
    )
    fedsac_alone_epochs: int = key(
        default=20, help="passes that a new client trains alone", minimum=1
    )
    groups: ParameterGroups = part(
        help="groups of the model's arrays, as fedsuite.models.parameter_groups makes them"
    )
    validation: Validation = part(help="scores models on the server")
    contributions: Mapping[int, float] | None = given(
        default=None, help="client to contribution in 0..1; others are measured"
    )

    known: dict[int, float] = state(default_factory=dict)
    importance: Vector | None = state(default_factory=lambda: None)
    counted_rounds: int = state(default_factory=int)
    _held: dict[int, dict[str, Mask]] = state(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known |= self.contributions or {}

    # ---------------------------------------------------------------------------- exchange

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        # A model that cannot be divided is refused before anybody trains.
        self.layers_of(arrays)
        if not self.initial:
            self.initial = dict(arrays)
        self._measure_contributions(client_ids)
        known = [k for k in client_ids if k in self.known]
        exchange = super().train_exchange(arrays, known)
        self._held = self.held_rows(arrays, known)
        own = {
            k: {**records, HELD: _bytes(self._held[k])}
            for k, records in exchange.own.items()
        }
        return replace(exchange, own=own)

    @override
    def own_records(
        self, arrays: Arrays, client_ids: Iterable[int]
    ) -> dict[int, dict[str, Arrays]]:
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
        """Return which rows each client with a contribution holds, at first all."""
        layers = self.layers_of(arrays)
        reputation = reputations(self.known, self.fedsac_beta)
        held = {}
        for k in client_ids:
            if k in reputation:
                neurons = np.ones(sum(layer.size for layer in layers), dtype=np.bool_)
                if self.importance is not None:
                    neurons = held_neurons(self.importance, reputation[k])
                held[k] = masks_of(layers, neurons)
        return held

    def _measure_contributions(self, client_ids: Sequence[int]) -> None:
        """Let new clients train alone, and score the results on the server."""
        new = [k for k in client_ids if k not in self.known]
        if not new:
            return
        exchange = Exchange(
            ALONE,
            new,
            shared={ARRAYS: self.initial},
            config={"alone-epochs": self.fedsac_alone_epochs},
            expected=Expected({ARRAYS: spec_of(self.initial)}),
        )
        # Few may be new: the quorum is judged when all train.
        with suppress(QuorumMissed):
            for reply in self.exchange(exchange):
                accuracy = self.validation.accuracy(reply.arrays[ARRAYS])
                self.known[reply.client_id] = accuracy

    # --------------------------------------------------------------------------- aggregate

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        neurons, rest = HeldMean(), WeightedMean()
        for reply in replies:
            masks = self._held[reply.client_id]
            neurons.add(reply.arrays[ARRAYS], masks)
            others = {n: a for n, a in reply.arrays[ARRAYS].items() if n not in masks}
            rest.add(others, 1.0)
        means = {**neurons.result(arrays), **(rest.result() or {})}
        shares = [_share(arrays, self._held[reply.client_id]) for reply in replies]
        scores = reputations(self.known, self.fedsac_beta)
        reputation = {k: score / WHOLE for k, score in scores.items()}
        self.record(replies, reputation, np.array(shares))
        return {name: means[name] for name in arrays}

    @override
    def counted(self, arrays: Arrays) -> None:
        super().counted(arrays)
        if self.counted_rounds % self.fedsac_interval == 0:
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

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        arrays, scalars = super().state()
        for k, value in self.known.items():
            arrays[f"contribution/{k}"] = np.array(value)
        if self.importance is not None:
            arrays["importance/"] = self.importance
        return arrays, {**scalars, "counted-rounds": self.counted_rounds}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        rest = dict(arrays)
        self.importance = rest.pop("importance/", None)
        self.known = {}
        for name in [name for name in rest if name.startswith("contribution/")]:
            self.known[int(name.partition("/")[2])] = float(rest.pop(name))
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
