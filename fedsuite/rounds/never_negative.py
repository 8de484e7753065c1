"""Arrays of an unknown network that are negative nowhere, such as variances, stay so.

An app that does not name its buffers may have statistics under any name. If an array is
negative nowhere, neither as sent nor at any client, and a step would make it so, it gets
the mean of the clients' ones, weighted by examples.
"""

from collections.abc import Iterable

import numpy as np
from typing_extensions import override

from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.aggregation import WeightedMean
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.stage import Stage
from fedsuite.rounds.validation import ClientReply


class NeverNegative(Stage):
    """Follows the arrays that are nowhere negative through a round."""

    def __init__(self) -> None:
        self._means: dict[str, WeightedMean] = {}

    @override
    def open(self, exchange: Exchange) -> None:
        sent = exchange.shared.get(ARRAYS, {})
        self._means = {
            name: WeightedMean()
            for name, array in sent.items()
            if not is_statistic(name, array) and _nowhere_negative(array)
        }

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        arrays = reply.arrays.get(ARRAYS, {})
        for name, mean in list(self._means.items()):
            array = arrays.get(name)
            if array is None:
                continue
            if _nowhere_negative(array):
                mean.add({name: array}, reply.num_examples)
            else:
                del self._means[name]
        return (reply,)

    @override
    def step(self, old: Arrays, new: Arrays) -> Arrays:
        kept: Arrays = {}
        for name, mean in self._means.items():
            if name in new and not _nowhere_negative(new[name]):
                kept |= mean.result() or {}
        return {**new, **kept} if kept else new


def _nowhere_negative(array: np.ndarray) -> bool:
    return bool(array.min(initial=0) >= 0)
