"""pFedCK (our reading): two models per client teach each other, and clients are clustered.

J. Zhang, Y. Shi, "A Personalized Federated Learning Method Based on Clustering and
Knowledge Distillation", Electronics 13(5):857, 2024.

From the paper's abstract: a client has an interactive model w_k that takes part in the
federation, and a personal model theta_k that stays. They distil each other through features
and soft predictions. In each round the server clusters clients by the similarity of the
changes of w_k, so that an interactive model hears of similar clients alone.

Our reading, since the body could not be read. On each mini-batch, with logits z, features h
that enter the classifier, and the other model taken as constant,

    L_theta = CE(z_theta) + a T^2 KL(softmax(z_w / T) || softmax(z_theta / T))
              + b MSE(h_theta, h_w),

and L_w the same with both exchanged. KL is the mean over rows, MSE over all numbers. The
server clusters by 1 - cosine of what training added to w_k, by average linkage, ties to the
lowest pair, until G clusters are left. A client is next sent the mean of its cluster,
weighted by examples. A client that never took part is sent the mean of the last round's
clients; one that did keeps its cluster's mean meanwhile. Clients are scored with theta_k.

Known to hold: with one cluster, a = b = 0 and all clients in each round, w is FedAvg's and
theta Standalone's, bit for bit where layers draw nothing. As many clusters as clients
exchange nothing. Both models start alike, and stay alike in their first training. Every
constant is ours; report results as "our reading". Optimisers of both begin anew in each
round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    EVALUATE,
    NO_COMMON_STEP,
    OWN_RULE,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    ConfigValue,
    Exchange,
    GatheredStrategy,
    OneOf,
    Release,
    ScoredModel,
    Vector,
    examples_of,
    flatten,
    grouped,
    joined,
    key,
    parameter_names,
    state,
    weighted_mean,
)


def cosine_distances(changes: Vector) -> Vector:
    """Return 1 - cosine of all pairs of rows, ``[clients, clients]``; 1 of a zero row."""
    lengths = np.sqrt(np.square(changes).sum(axis=1, keepdims=True))
    units = changes / np.where(lengths > 0, lengths, 1.0)
    # Without BLAS, whose bits depend on its threads.
    distances: Vector = 1.0 - np.einsum("id,jd->ij", units, units)
    return distances


def average_linkage(distances: Vector, count: int) -> list[list[int]]:
    """Return at most ``count`` clusters of rows, each in ascending order.

    The two clusters of least mean distance merge first, of several the lowest pair.
    """
    between = distances.copy()
    np.fill_diagonal(between, np.inf)
    clusters = {row: [row] for row in range(len(distances))}
    while len(clusters) > count:
        first, second = divmod(int(between.argmin()), len(between))
        sizes = len(clusters[first]), len(clusters[second])
        merged = (sizes[0] * between[first] + sizes[1] * between[second]) / sum(sizes)
        between[first], between[:, first] = merged, merged
        between[second], between[:, second] = np.inf, np.inf
        clusters[first] = sorted(clusters[first] + clusters.pop(second))
    return list(clusters.values())


class PFedCK(GatheredStrategy):
    """Averages within clusters what clients distil from and into private models."""

    READING: ClassVar[str] = "our reading of the abstract"
    PRIVACY: ClassVar[Release] = Release(
        "refused", "each client gets the mean of clients that are like it"
    )
    OWN_MODELS: ClassVar[bool] = True
    NO_GLOBAL_MODEL: ClassVar[str] = "each client gets a model of its own"
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {**OWN_RULE, **NO_COMMON_STEP}
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "PFedCKClient", "keeps a personal model and distils both ways", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    SCORED_MODEL: ClassVar[ScoredModel] = "private"
    FEATURE_WEIGHT: ClassVar[str] = "pfedck-feature-weight"

    pfedck_clusters: int = key(
        default=3,
        help="clusters of clients; 1 is one model for all",
        minimum=1,
        search=OneOf(1, 2, 3, 5),
    )
    pfedck_logit_weight: float = key(
        default=1.0,
        help="weight a of distillation by predictions; 0 is off",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.05, 5.0),
    )
    pfedck_feature_weight: float = key(
        default=1.0,
        help="weight b of distillation by features; 0 is off",
        minimum=0.0,
        told=TRAIN,
    )
    pfedck_temperature: float = key(
        default=1.0, help="softmax temperature of distillation", above=0.0, told=TRAIN
    )
    models: dict[int, Arrays] = state(default_factory=dict)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        return replace(exchange, shared={}, own=self._own(arrays, client_ids))

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids, own=self._own(arrays, client_ids))

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        names = parameter_names(arrays)
        changes = [
            flatten(reply.arrays[ARRAYS], names)
            - flatten(self.models.get(reply.client_id, arrays), names)
            for reply in replies
        ]
        clusters = average_linkage(
            cosine_distances(np.stack(changes)), self.pfedck_clusters
        )
        for number, members in enumerate(clusters):
            mean = _mean([replies[row] for row in members])
            for row in members:
                client_id = replies[row].client_id
                self.models[client_id] = mean
                self.reports[TRAIN].annotate(client_id, cluster=float(number))
        return _mean(replies)

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        distinct = {id(self.models[k]): self.models[k] for k in sorted(self.models)}
        order = list(distinct)
        numbers = {str(k): order.index(id(model)) for k, model in self.models.items()}
        return joined(dict(enumerate(distinct.values()))), dict(sorted(numbers.items()))

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        means = grouped(arrays)
        self.models = {int(k): means[str(number)] for k, number in scalars.items()}

    def _own(
        self, arrays: Arrays, client_ids: Sequence[int]
    ) -> dict[int, dict[str, Arrays]]:
        return {k: {ARRAYS: self.models.get(k, arrays)} for k in client_ids}


def _mean(replies: Sequence[ClientReply]) -> Arrays:
    """Return the mean of clients with examples, weighted by them."""
    models = (reply.arrays[ARRAYS] for reply in replies)
    return weighted_mean(models, examples_of(replies).tolist()) or {}
