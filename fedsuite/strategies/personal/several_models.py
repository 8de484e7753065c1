"""Base of methods that keep several models for clients to choose or mix.

Models must differ at first. The first one is the initial model. In each other one the
entries of each trained array are in another order, which for independent entries is another
draw of the same law. So a pretrained model is of use to the first one alone, and another
seed gives other starts. A model that no client of the round has a share of stays. The run's
model is the first one.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from fedsuite.messages.statistics import is_statistic
from fedsuite.method import (
    ARRAYS,
    NO_COMMON_STEP,
    OWN_RULE,
    Arrays,
    ClientReply,
    ConfigValue,
    Exchange,
    GatheredStrategy,
    Release,
    ScoredModel,
    Value,
    Vector,
    grouped,
    joined,
    model_record,
    numpy_stream,
    spec_of,
    state,
    weighted_mean,
)

NO_SHARE = 1e-12
"""Sum of the clients' weights of a model at which it stays as it is."""


def shuffled(arrays: Arrays, seed: int, number: int) -> Arrays:
    """Return a model with the entries of each trained array in another order.

    An array of more than two entries that has two values at most stays as it is: it is a
    mask, or the zeros or ones that a layer starts from.
    """
    stream = numpy_stream(seed, "focus-models", number)
    shuffled_arrays: Arrays = {}
    for name, array in arrays.items():
        shuffled_arrays[name] = array
        if is_statistic(name, array) or array.size == 0:
            continue
        drawn = stream.permutation(array.reshape(-1)).reshape(array.shape)
        others = (array != array.min()) & (array != array.max())
        if array.size <= 2 or others.any():
            shuffled_arrays[name] = drawn
    return shuffled_arrays


class SeveralModels(GatheredStrategy):
    """Sends all models to all clients, and averages each over the clients that have it."""

    PRIVACY: ClassVar[Release] = Release(
        "refused", "clients choose or weigh models by their losses under each of them"
    )
    OWN_MODELS: ClassVar[bool] = True
    NO_GLOBAL_MODEL: ClassVar[str] = "there are several, which clients choose or mix"
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **OWN_RULE,
        **NO_COMMON_STEP,
        "score-training-data": "its clients receive several models",
    }
    FIXED: ClassVar[Mapping[str, Value]] = {"upload-noise-multiplier": 0.0}
    FIXED_REASON: ClassVar[str] = "noise is for the change of one model, of several here"
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app receives one model"
    SCORED_MODEL: ClassVar[ScoredModel] = "tuned"

    others: list[Arrays] = state(default_factory=list)

    @abstractmethod
    def num_models(self) -> int:
        """Return the number of models."""

    def models(self, arrays: Arrays) -> dict[str, Arrays]:
        """Return all models by the names of their records; ``arrays`` is the first one."""
        if not self.others:
            numbers = range(1, self.num_models())
            self.others = [shuffled(arrays, self.seed, number) for number in numbers]
        named = {model_record(m): a for m, a in enumerate(self.others, start=1)}
        return {ARRAYS: arrays, **named}

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        models = self.models(arrays)
        records = {name: spec_of(model) for name, model in models.items()}
        expected = replace(exchange.expected, arrays=records)
        return replace(exchange, shared=models, expected=expected)

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().evaluate_exchange(arrays, client_ids)
        return replace(exchange, shared=self.models(arrays))

    def averaged(
        self, arrays: Arrays, replies: Sequence[ClientReply], weights: Vector
    ) -> Arrays:
        """Average each model by a column of ``[clients, models]``; return the first one."""
        models = self.models(arrays)
        for (name, model), column in zip(models.items(), weights.T.tolist(), strict=True):
            if sum(column) > NO_SHARE:
                counted = [(r, w) for r, w in zip(replies, column, strict=True) if w > 0]
                means = (reply.arrays[name] for reply, _ in counted)
                models[name] = weighted_mean(means, [w for _, w in counted]) or model
        first, *self.others = models.values()
        return first

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        return joined(dict(enumerate(self.others))), {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self.others = list(grouped(arrays).values())
