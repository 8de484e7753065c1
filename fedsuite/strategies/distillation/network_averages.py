"""Exchanges on public data, and an average of the clients' models within each network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    NO_COMMON_STEP,
    OWN_RULE,
    Arrays,
    ClientReply,
    Exchange,
    Value,
    WeightedMean,
    key,
    state,
)
from fedsuite.strategies.averaging.network_models import NetworkModels
from fedsuite.strategies.distillation.public_exchange import PublicExchange

Average = Literal["size", "uniform"]
Combination = Literal["avg-logits", "avg-probs", "avg-losses"]


class NetworkAverages(NetworkModels, PublicExchange):
    """Mixin, named before a method of outputs, that also sends and averages models.

    The local phase's message holds the model of the client's network, and the replies to
    the last exchange hold the clients' models.
    """

    FIXED: ClassVar[Mapping[str, Value]] = {
        **PublicExchange.FIXED,
        "upload-noise-multiplier": 0.0,
    }
    FIXED_REASON: ClassVar[str] = (
        "it distils on one view of a sample, and the message that a client answers with "
        "its model does not hold the one that noise is measured from"
    )
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {**OWN_RULE, **NO_COMMON_STEP}
    PRIVATE_MODELS: ClassVar[bool] = False
    NO_GLOBAL_MODEL: ClassVar[str] = ""

    feddf_average: Average = key(default="size", help="models weigh by examples, or alike")
    _means: list[WeightedMean] = state(default_factory=list)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        own = self.models_of(arrays, client_ids)
        last = self.transfers(replace(self.local_phase(client_ids), own=own))
        return replace(last, expected_of=self.models_expected(last.client_ids))

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._means = [WeightedMean() for _ in self.networks.initial]

    @override
    def take(self, reply: ClientReply) -> None:
        super().take(reply)
        weight = reply.num_examples
        if self.feddf_average == "uniform":
            weight = float(weight > 0)
        self._means[self.network_of(reply.client_id)].add(reply.arrays[ARRAYS], weight)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        return self.updated(arrays, self.averages())

    # ------------------------------------------------------------------ for methods to use

    def averages(self) -> dict[int, Arrays]:
        """Return by network the mean of its clients' models, where any has examples."""
        means = ((index, mean.result()) for index, mean in enumerate(self._means))
        return {index: mean for index, mean in means if mean is not None}

    def updated(self, arrays: Arrays, models: Mapping[int, Arrays]) -> Arrays:
        """Return the global arrays with new models of some networks in them."""
        parts = self.networks.split(arrays)
        return self.networks.join([models.get(k, part) for k, part in enumerate(parts)])
