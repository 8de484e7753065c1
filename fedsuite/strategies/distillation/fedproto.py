"""FedProto: features are drawn to the mean feature of their class over all clients.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang, "FedProto: Federated Prototype
Learning across Heterogeneous Clients", AAAI 2022, arXiv:2105.00243; authors' code
yuetan031/FedProto. Features z are what enters the classifier, the last linear layer; all
clients need the same number of them.

``fedproto``, native. With global prototypes C, and d features,

    loss = CE + lambda (1 / (B d)) sum over the batch of ||C[y] - z||^2  at each local step,
    C_n[k] = mean of z over the samples of class k in the last local epoch,
    C[k] = mean of C_n[k] over the clients that have class k           at the server.

A sample whose class has no prototype adds 0; in the first round none has one. Clients are
scored with their own classifier; ``prototype_accuracy`` beside it is that of the nearest
prototype among the classes of the client's training data.

``fedproto-public``, as P. Han, X. Shi, J. Huang, "FedAL", arXiv:2311.16584 compare with it:
no labels, but features on public batches; a transfer step on

    lambda (1 / (B d)) sum over x of ||z_n(x) - mean z(x)||^2.

The classifier learns in the local phase alone. The mean is over all clients, the own one
included; ``proto-target`` others leaves it out, which makes the loss (N / (N - 1))^2 times
that.

Known to hold: lambda = 0 is local training, bit for bit in ``fedproto``.

Deviations. The paper's aggregation divides by counts and by the number of clients, which
would shrink the prototypes; its code takes the plain mean (``proto-aggregation`` uniform);
``count`` weighs by examples. The regulariser is the code's, per sample; the paper has
distances of prototypes. The last epoch is the last ceil(n / batch-size) steps, or all where
``local-steps`` takes fewer. Prototypes are those of the last round that counted. FedAL does
not print its loss: the form above is ours. The authors train one epoch of SGD of rate 0.01
and momentum 0.5, made anew in each round; defaults here are FedAL's.

A client tells mean features of its classes. Means of few examples tell much; of a class
with one row the mean is that row's features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.method import (
    CLASS_TABLE,
    FEATURES,
    MEAN_OUTPUTS,
    ROWS,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    ConfigValue,
    Declared,
    Exchange,
    RecordSpec,
    Value,
    key,
    state,
)
from fedsuite.strategies.distillation.class_tables import (
    ClassTables,
    mean_rows,
    packed,
    table_of,
)
from fedsuite.strategies.distillation.feature_width import WIDTH, agreed_feature_width
from fedsuite.strategies.distillation.public_exchange import (
    DEFAULTS,
    Feedback,
    PublicExchange,
    bounded,
    mean_outputs,
)

Aggregation = Literal["uniform", "count"]
Target = Literal["all", "others"]


class ProtoWeight(Declared):
    """Key of both forms of FedProto."""

    proto_weight: float = key(
        default=1.0,
        help="weight of the distance to mean features; 0 is local training",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.05, 5.0),
    )


class FedProto(ProtoWeight, ClassTables):
    """Clients send their mean features per class, and get the means over clients."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedProtoClient", "answers with the prototypes of its classes"
    )
    FEATURE_WEIGHT: ClassVar[str] = "proto-weight"

    proto_aggregation: Aggregation = key(
        default="uniform", help="clients count alike, or by examples per class", told=TRAIN
    )

    prototypes: Arrays = state(default_factory=dict)
    width: int = state(default_factory=int)

    @override
    def row_width(self) -> int:
        self.width = self.width or agreed_feature_width(self)
        return self.width

    @override
    def take_tables(self, replies: Sequence[ClientReply]) -> None:
        held = bounded({reply.client_id: {ROWS: table_of(reply)[0]} for reply in replies})
        rows = [held[reply.client_id][ROWS] for reply in replies]
        means, present = mean_rows(rows, [self.weights_of(reply) for reply in replies])
        self.prototypes = packed(means, present)
        self.round_metrics["classes_covered"] = float(present.sum())

    def weights_of(self, reply: ClientReply) -> NDArray[Any]:
        """Return each row's weight: 1, or counts of at most the client's examples."""
        _, counts = table_of(reply)
        if self.proto_aggregation == "uniform":
            return counts > 0
        claimed = float(counts.sum(dtype=np.float64))
        weights: NDArray[Any] = counts * min(1.0, reply.num_examples / max(claimed, 1.0))
        return weights

    @override
    def shared_rows(self) -> Arrays:
        return self.prototypes

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().evaluate_exchange(arrays, client_ids)
        shared = {CLASS_TABLE: self.prototypes} if self.prototypes else {}
        return replace(exchange, shared=shared, config=self.settings)

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        return dict(self.prototypes), {WIDTH: self.width}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self.prototypes = dict(arrays)
        self.width = cast(int, scalars.get(WIDTH, 0))


class FedProtoPublic(ProtoWeight, PublicExchange):
    """Clients send features on public data, and get their means."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedProtoPublicClient", "answers with its features on public data"
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = {**DEFAULTS, "local-steps": 1}

    proto_target: Target = key(
        default="all", help="mean features of all clients, or of the others", told=TRAIN
    )
    transfer_steps: int = 1
    width: int = state(default_factory=int)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        self.width = self.width or agreed_feature_width(self)
        return super().train_exchange(arrays, client_ids)

    @override
    def output_spec(self) -> RecordSpec:
        return {FEATURES: ((self.batch_size, self.width), "float32")}

    @override
    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        mean = mean_outputs(outputs)
        distances = [
            np.square(held[FEATURES] - mean[FEATURES], dtype=np.float64).mean()
            for held in outputs.values()
        ]
        self.note(feature_distance=float(np.mean(distances)))
        return Feedback({MEAN_OUTPUTS: mean})

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        return {}, {WIDTH: self.width}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self.width = cast(int, scalars.get(WIDTH, 0))
