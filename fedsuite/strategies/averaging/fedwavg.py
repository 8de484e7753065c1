"""FedwAvg (our reading): clients whose examples are forgotten more count more.

M. Hong, S.-K. Kang, J.-H. Lee, "Weighted Averaging Federated Learning Based on Example
Forgetting Events in Label Imbalanced Non-IID", Applied Sciences 12(12):5806, 2022.

A forgetting event of a training example is a change from right to wrong between two looks
at it under the received model. With f_k the number of a client's examples with at least one
event so far:

    omega_k = (1 - alpha) n_k / sum n + alpha f_k / sum f   over the clients of the round.

Deviations: only the abstract was at hand: clients with more forgettable examples get a
larger weight. The formula is ours, with alpha = 0.3 and a look every few rounds as in
FedEBA+'s paper; report results as "our reading". Examples never learnt have no event and
give no weight; ``never-learned`` counts them. Where nothing was forgotten the weights are
FedAvg's.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    SHARES_OF_PAPERS,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    GatheredStrategy,
    Value,
    Vector,
    examples_of,
    key,
    metric_of,
    share_ratio_key,
)

FORGOTTEN = "forgotten"


def forgetting_weights(examples: Vector, forgotten: Vector, alpha: float) -> Vector:
    """Return omega_k times sum n, ``[clients]``; alpha 0 returns n_k.

    More than n_k > 0 forgotten examples count as n_k.
    """
    counted = np.minimum(forgotten, examples)
    if alpha == 0 or not counted.any():
        return examples
    by_events = counted / counted.sum() * examples.sum()
    weights: Vector = (1.0 - alpha) * examples + alpha * by_events
    return weights


class FedwAvg(GatheredStrategy):
    """FedAvg with a part of the weights given by forgetting events."""

    READING: ClassVar[str] = "our reading of the abstract"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedwAvgClient", "counts forgotten examples"
    )

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {}

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    max_share_ratio: float | str = share_ratio_key()

    fedwavg_alpha: float = key(
        default=0.3,
        help="share of the weights by forgotten examples; 0 is FedAvg",
        minimum=0.0,
        maximum=1.0,
        search=Between(0.05, 0.9),
    )
    fedwavg_every: int = key(
        default=1, help="rounds between two looks at the examples", minimum=1, told=TRAIN
    )

    @override
    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        return {FORGOTTEN: (0.0, math.inf)}

    @override
    def claims(self) -> Collection[str]:
        return (FORGOTTEN,)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        examples, forgotten = examples_of(replies), metric_of(replies, FORGOTTEN)
        return self.average(
            replies, forgetting_weights(examples, forgotten, self.fedwavg_alpha)
        )
