"""lp-proj: clients' own models, held together in a random subspace of few dimensions.

S. Lin, Y. Han, X. Li, Z. Zhang, "Personalized Federated Learning towards Communication
Efficiency, Robustness and Fairness", NeurIPS 2022; authors' code desternylin/perfed.

Equations used. P is a fixed matrix of standard normal numbers, ``[dimensions,
parameters]``, each row scaled to length 1. Client k keeps theta_k, begins with u_k = u,
and with psi(r) = sign(r) for p = 1 and r for p = 2 takes

    theta_k <- theta_k - eta (grad F_k(theta_k) - lambda P' psi(u_k - P theta_k))

on each mini-batch, the gradient of F_k clipped to a length of 60. After every J
mini-batches and after the last one, u_k <- u_k - eta_u lambda psi(u_k - P theta_k). The
server takes u <- u + s (mean of u_k - u), each client counting alike; u is 0 at first.
Clients are scored with theta_k. Eta is the experiment's learning rate.

Known to hold: lambda = 0 trains theta_k as Standalone does, bit for bit, and u stays 0.
What travels is as long as u, whatever the model.

Deviations. The authors' code trains all clients in each round and averages the sampled
ones; here the sampled ones train. Its class ``lp_proj`` divides the step of u by the
residual's length at p = 2; the method that is published as lp-proj-2 does not, and this one
does not. It applies weight decay at p = 2 alone; here at both, if the experiment sets any.
Its robust means, and P with orthogonal rows, are left out. Each client makes P from the
experiment's seed. Statistics of normalisation layers are not projected.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    EVALUATE,
    NO_COMMON_STEP,
    NO_WHOLE_MODEL,
    OWN_RULE,
    REFERENCE,
    TRAIN,
    UPDATE,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    ConfigValue,
    Exchange,
    Expected,
    FederatedStrategy,
    OneOf,
    Release,
    Rule,
    Value,
    WeightedMean,
    With,
    apply_update,
    key,
    server_rate_key,
    spec_of,
    state,
)


class LpProj(FederatedStrategy):
    """Averages projections of the clients' models, to which clients hold on."""

    PRIVACY: ClassVar[Release] = Release(
        "refused", "projections travel, and no change of one shared model"
    )
    PRIVATE_MODELS: ClassVar[bool] = True
    NO_GLOBAL_MODEL: ClassVar[str] = "clients keep their models"
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **OWN_RULE,
        **NO_COMMON_STEP,
        **NO_WHOLE_MODEL,
    }
    FIXED: ClassVar[Mapping[str, Value]] = {"client-models": ""}
    FIXED_REASON: ClassVar[str] = "it projects all clients' models by one matrix"
    DEFAULTS: ClassVar[Mapping[str, Value]] = {"local-steps": 100}
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "LpProjClient", "keeps its model and sends its projection", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("lp-proj-lambda", "lp-proj-learning-rate", "lp-proj-p"),
            (
                With("lp-proj-p", 2),
                lambda v: v["lp-proj-lambda"] * v["lp-proj-learning-rate"] >= 2,
            ),
            "the product of the first two must be below 2",
            "lower one of them",
        ),
    )

    server_learning_rate: float = server_rate_key()

    lp_proj_p: int = key(
        default=1,
        help="1 pulls by signs of differences, 2 by differences",
        minimum=1,
        maximum=2,
        told=TRAIN,
    )
    lp_proj_lambda: float = key(
        default=15.0,
        help="pull of models to the common projection; 0 trains them alone",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.01, 15.0),
    )
    lp_proj_dimensions: int = key(
        default=10,
        help="dimensions of the subspace: the numbers that travel",
        minimum=1,
        search=OneOf(10, 30, 60),
    )
    lp_proj_inner_steps: int = key(
        default=20, help="mini-batches J to a step of the projection", minimum=1, told=TRAIN
    )
    lp_proj_learning_rate: float = key(
        default=0.1, help="step size of the projection", minimum=0.0, told=TRAIN
    )
    reference: Arrays = state(default_factory=dict)
    _mean: WeightedMean = state(default_factory=WeightedMean)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reference = {REFERENCE: np.zeros(self.lp_proj_dimensions, np.float32)}

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(
            TRAIN,
            client_ids,
            shared={REFERENCE: self.reference},
            config=self.told(TRAIN),
            expected=Expected({UPDATE: spec_of(self.reference)}),
        )

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids)

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._mean = WeightedMean()

    @override
    def take(self, reply: ClientReply) -> None:
        self._mean.add(reply.arrays[UPDATE], float(reply.num_examples > 0))

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        update = self._mean.result()
        if update is not None:
            rate = self.server_learning_rate
            self.reference = apply_update(self.reference, update, rate)
        return None

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        return self.reference, {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self.reference = dict(arrays)
