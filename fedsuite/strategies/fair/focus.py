"""FOCUS: several models, of which each client learns by its losses which describe it.

W. Chu, C. Xie, B. Wang, L. Li, L. Yin, A. Nourian, H. Zhao, B. Li, "FOCUS: Fairness via
Agent-Awareness for Federated Learning on Heterogeneous Data", arXiv:2207.10265.

Equations used, for client k and models w_1 .. w_G, with pi_k = (1/G, .., 1/G) at first:

    E: pi_km <- pi_km exp(-F_k(w_m)) / sum_j pi_kj exp(-F_k(w_j)),
    M: theta_km is w_m after the client's ordinary training,
       w_m <- sum_k pi_km theta_km / sum_k pi_km   over the clients of the round,
    a client is scored with sum_m pi_km softmax(f_{w_m}(x)).

F_k is the mean loss on all training rows before training, in evaluation mode. A client that
never took part makes one step E before it is scored.

Known to hold: one model is FedAvg with equal weights, bit for bit. Equal models stay equal.
The same number added to all losses of a client changes nothing.

Deviations. The abstract could be read and the body not: the equations are the standard form
of this clustering. Without memory pi is that of the last losses alone; weights by examples
are n_k pi_km. Both are ours. Models must differ at first: w_1 is the initial model, and in
each other one the entries of each array are in another order, which for independent entries
is another draw of the same law. So a pretrained model is of use to the first one alone. A
model that no client of the round has a share of stays. The run's model is w_1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from fedsuite.core.keys import Value
from fedsuite.core.rng import numpy_stream
from fedsuite.core.search import OneOf
from fedsuite.core.settings import key, state
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    SHARES,
    TRAIN,
    Arrays,
    ConfigValue,
    grouped,
    joined,
    model_record,
)
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.aggregation import weighted_mean
from fedsuite.rounds.all_replies import GatheredStrategy, examples_of
from fedsuite.rounds.declaration import NO_COMMON_STEP, OWN_RULE, ClientNeeds, ScoredModel
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.privacy_rules import Release
from fedsuite.rounds.validation import BadReply, ClientReply, spec_of

NO_SHARE = 1e-12
"""Sum of the clients' shares of a model at which it stays as it is."""


def shuffled(arrays: Arrays, seed: int, number: int) -> Arrays:
    """Return a model with the entries of each trained array in another order."""
    stream = numpy_stream(seed, "focus-models", number)
    return {
        name: array
        if is_statistic(name, array)
        else stream.permutation(array.reshape(-1)).reshape(array.shape)
        for name, array in arrays.items()
    }


class FOCUS(GatheredStrategy):
    """Averages several models, each by the clients' shares of it."""

    PRIVACY: ClassVar[Release] = Release(
        "refused", "clients weigh models by their losses under each of them"
    )
    OWN_MODELS: ClassVar[bool] = True
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **OWN_RULE,
        **NO_COMMON_STEP,
        "score-training-data": "its clients receive several models",
    }
    FIXED: ClassVar[Mapping[str, Value]] = {"upload-noise-multiplier": 0.0}
    FIXED_REASON: ClassVar[str] = "shares of models cannot carry noise"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FOCUSClient", "trains all models and keeps its shares of them", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app trains one model"
    SCORED_MODEL: ClassVar[ScoredModel] = "tuned"

    focus_models: int = key(
        default=2,
        help="models; 1 is FedAvg with equal weights",
        minimum=1,
        search=OneOf(2, 3, 4),
    )
    focus_memory: bool = key(
        default=True,
        help="whether shares go on from the last round; false takes the last losses alone",
        told=TRAIN,
    )
    focus_size_weights: bool = key(
        default=False, help="whether a client's shares count by its examples"
    )
    focus_inference: Literal["mixture", "largest"] = key(
        default="mixture",
        help="score clients with the mixture of all models, or with that of the largest "
        "share",
        told=EVALUATE,
    )
    others: list[Arrays] = state(default_factory=list)

    def models(self, arrays: Arrays) -> dict[str, Arrays]:
        """Return all models by the names of their records; ``arrays`` is the first one."""
        if not self.others:
            numbers = range(1, self.focus_models)
            self.others = [shuffled(arrays, self.seed, number) for number in numbers]
        named = {model_record(m): a for m, a in enumerate(self.others, start=1)}
        return {ARRAYS: arrays, **named}

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send all models; expect each of them trained, and the client's shares."""
        exchange = super().train_exchange(arrays, client_ids)
        models = self.models(arrays)
        records = {name: spec_of(model) for name, model in models.items()}
        records[SHARES] = {SHARES: ((self.focus_models,), "float64")}
        expected = replace(exchange.expected, arrays=records, check=_check_shares)
        return replace(exchange, shared=models, expected=expected)

    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send all models."""
        exchange = super().evaluate_exchange(arrays, client_ids)
        return replace(exchange, shared=self.models(arrays))

    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        """Average each model by the shares of it."""
        shares = np.stack([reply.arrays[SHARES][SHARES] for reply in replies])
        for reply, row in zip(replies, shares.tolist(), strict=True):
            named = {f"share_{number}": share for number, share in enumerate(row)}
            self.reports[TRAIN].annotate(reply.client_id, **named)
        counts = examples_of(replies) if self.focus_size_weights else np.ones(len(replies))
        models = self.models(arrays)
        for (name, model), column in zip(models.items(), shares.T, strict=True):
            models[name] = _mean(replies, name, column * counts) or model
        first, *self.others = models.values()
        return first

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return all models but the first."""
        return joined(dict(enumerate(self.others))), {}

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take them back."""
        self.others = list(grouped(arrays).values())


def _mean(replies: Sequence[ClientReply], name: str, weights: Vector) -> Arrays | None:
    """Return the weighted mean of one model, None of nearly no weight."""
    if weights.sum() <= NO_SHARE:
        return None
    return weighted_mean((reply.arrays[name] for reply in replies), weights.tolist())


def _check_shares(reply: ClientReply) -> None:
    """Refuse shares that are no shares of 1."""
    shares = reply.arrays[SHARES][SHARES]
    if not ((shares >= 0).all() and abs(float(shares.sum()) - 1.0) < 1e-6):
        raise BadReply(f"{SHARES} are no numbers of 0 or more whose sum is 1")
