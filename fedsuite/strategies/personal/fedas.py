"""FedAS: a received body is drawn to what the client knew, and bodies are weighed by tau.

X. Yang, W. Huang, M. Ye, "FedAS: Bridging Inconsistency in Personalized Federated
Learning", CVPR 2024, pp. 11986-11995; authors' code xiyuanyang45/FedAS.

Equations used, for a client k of the round. mu_kc is the mean feature of its training rows
of class c under the body that it had after its last training. The received body first takes
steps on sum over classes c of a mini-batch of MSE(z_c, mu_kc), the mean over rows of c and
features. Then body and own head train together, and with the trained model in evaluation
mode tau_k = sum over mini-batches of ||grad of the mini-batch's mean loss||^2. The server
takes beta <- sum_k tau_k beta_k / sum_k tau_k. Clients are scored with body and head as
their last training left them.

Known to hold: without alignment and with weights by examples the shared body is FedPer's,
bit for bit. A body that has not changed is not moved by the first step where a mini-batch
has one row of each class.

Deviations. The authors' code hands one model object to all clients, so that each starts
from the aligned body of the one before; here each aligns a copy. It leaves incomplete
mini-batches out of mu and tau, and keeps statistics of normalisation layers at home; here
all rows count and statistics travel with the body. Mini-batches are of the experiment's
size. ``samples`` in place of ``batches`` is the mean of squared norms of single rows'
gradients, which does not grow with the number of mini-batches; it is ours. Where every tau
is 0 the weights are by examples. As in the code, a client's first alignment is to the
features of the initial model. Tau is large where a client fits its rows badly.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    EVALUATE,
    LARGEST_COUNT,
    SHARES_OF_PAPERS,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    Exchange,
    OneOf,
    Release,
    ScoredModel,
    Unless,
    Value,
    key,
    share_ratio_key,
    state,
)
from fedsuite.strategies.personal.fedper import FedPer

FISHER = "fisher"


class FedAS(FedPer):
    """FedPer with aligned bodies, weighted by the squared gradients of the clients."""

    PRIVACY: ClassVar[Release] = Release(
        "refused", "bodies are weighed by gradients of all clients together"
    )
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedASClient", "keeps its model, aligns what it receives to it", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    PAPER: ClassVar[Mapping[str, Value]] = SHARES_OF_PAPERS

    alignment_epochs: int = key(
        default=1,
        help="passes over the data that draw the received body to the own one; 0 is off",
        minimum=0,
        told=TRAIN,
        search=OneOf(0, 1, 2),
    )
    alignment_rate: float = key(
        default=0.01,
        help="step size of these passes",
        above=0.0,
        told=TRAIN,
        search=Between(0.001, 0.1),
    )
    fedas_weights: Literal["batches", "samples", "examples"] = key(
        default="batches",
        help="a client's weight: squared gradients of its mini-batches or of its rows, or "
        "its number of examples",
        told=TRAIN,
    )
    max_share_ratio: float | str = share_ratio_key(Unless("fedas-weights", "examples"))

    _held: list[ClientReply] = state(default_factory=list)
    _by_fisher: bool = state(default_factory=bool)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        bounds = dict.fromkeys(self.claims(), (0.0, LARGEST_COUNT))
        return replace(exchange, expected=replace(exchange.expected, bounds=bounds))

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        return Exchange(EVALUATE, client_ids)

    @override
    def claims(self) -> Collection[str]:
        return () if self.fedas_weights == "examples" else (FISHER,)

    @property
    @override
    def share_ratio(self) -> float:
        return math.inf if self.fedas_weights == "examples" else super().share_ratio

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._held = []

    @override
    def take(self, reply: ClientReply) -> None:
        if self.fedas_weights == "examples":
            super().take(reply)
        else:
            self._held.append(reply)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        held, self._held = self._held, []
        self._by_fisher = any(r.metrics[FISHER] for r in held if r.num_examples > 0)
        for reply in held:
            super().take(reply)
        return super().aggregate(arrays)

    @override
    def weight_of(self, reply: ClientReply) -> float:
        has_some = reply.num_examples > 0
        by_fisher = self._by_fisher and has_some
        return reply.metrics[FISHER] if by_fisher else super().weight_of(reply)
