"""FedAKD: a private local model and the global one teach each other, one after the other.

T. Yu, J. Wang, J. Wang, Y. Lin, et al., "Towards Collaborative Fairness in Federated
Learning Under Imbalanced Covariate Shift", KDD 2025, arXiv:2507.08617.

Equations used (Algorithm 1). Client k keeps w_k for ever, w_k^0 = w^0. In round t it

1. trains w_k on CE + alpha KD(teacher w_g) over all its training data D_k (2, 3);
2. selects I = {(x, y) in D_k: argmax f(w_k; x) = y}, by w_k as it is now (4);
3. trains a copy of w_g on CE + beta KD(teacher w_k) over I alone (5, 6), and sends it.

The server averages the copies, weighted by |D_k|. KD(student; teacher) is the mean of
T^2 KL(softmax(teacher / T) || softmax(student / T)). A teacher is in evaluation mode and
changes in no bit. w_k, I and accuracies on training data never leave the client; |I| does,
to be recorded.

Known to hold: alpha = 0 trains w_k as Standalone does, bit for bit; all-data with beta = 0
is FedAvg.

Orders. ``paper`` is the above. ``code`` is that of the authors' scripts: 3, aggregate, then
1 and 2 with the new global model; the first 3 is on all of D_k with teacher w^0. Here 1 and
2 wait for the next round's message, which brings that model: the same bits, without another
exchange. So a round scores w_k before its 1, and the last round's 1 and 2 are not done,
after which the authors score nothing. alpha and beta are named as in the paper; the scripts
swap them.

Ablations (Table 4): ``all-data``, 3 is over D_k; ``single-dist``, w_k <- w_g in place of 1
(read literally: w_k is not trained); ``correct-agg``, the server weighs by |I|.

Deviations. The paper says SGD; its scripts train with Adam, made anew for each step: Adam
is the default here. The scripts train and select on the clients' test data too; here no
test sample is touched. Where I is empty the received model goes back as it came, with
weight |D_k|, or 0 under ``correct-agg``; if all weights are 0 the model stays. Clients are
scored with w_k and with the global model: the paper does not say which. The confidence
threshold is ours; 0 is the paper's. An absent client, which the paper does not consider,
keeps its w_k, and the mean is over those that answered.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    LARGEST_COUNT,
    SELECTED,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    Exchange,
    Release,
    ScoredModel,
    Value,
    With,
    key,
    share_ratio_key,
    state,
)
from fedsuite.models.distillation import distillation_loss, select_correct
from fedsuite.strategies.averaging.fedavg import FedAvg

__all__ = ["FedAKD", "distillation_loss", "select_correct"]

Order = Literal["paper", "code"]
Ablation = Literal["none", "all-data", "single-dist", "correct-agg"]


class FedAKD(FedAvg):
    """FedAvg of copies of the global model, each taught by a client's private model."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "its mean may count samples that private models select",
    )

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedAKDClient", "keeps a local model and distils both ways"
    )

    DEFAULTS: ClassVar[dict[str, Value]] = {"optimizer": "adam", "learning-rate": 0.001}
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    global_to_local_weight: float = key(
        default=1.0,
        help="weight alpha of distillation into local models; 0 trains them alone",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.05, 5.0),
    )
    local_to_global_weight: float = key(
        default=1.0,
        help="weight beta of distillation into the copy of the global model",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.05, 5.0),
    )
    distillation_temperature: float = key(
        default=1.0, help="softmax temperature of distillation", above=0.0, told=TRAIN
    )
    confidence_threshold: float = key(
        default=0.0,
        help="least probability of the label of a selected sample; 0 is no limit",
        minimum=0.0,
        maximum=1.0,
        told=TRAIN,
    )
    fedakd_order: Order = key(
        default="paper", help="local model first (paper) or last (their code)", told=TRAIN
    )
    fedakd_ablation: Ablation = key(
        default="none", help="selection, local training or weights left out", told=TRAIN
    )

    PAPER: ClassVar[dict[str, Value]] = {}
    max_share_ratio: float | str = share_ratio_key(With("fedakd-ablation", "correct-agg"))

    _examples: float = state(default_factory=float)
    _selected: float = state(default_factory=float)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        bounds = {SELECTED: (0.0, LARGEST_COUNT)}
        return replace(exchange, expected=replace(exchange.expected, bounds=bounds))

    @override
    def claims(self) -> Collection[str]:
        return (SELECTED,)

    @property
    @override
    def share_ratio(self) -> float:
        by_selected = self.fedakd_ablation == "correct-agg"
        return super().share_ratio if by_selected else math.inf

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._examples = self._selected = 0.0

    @override
    def take(self, reply: ClientReply) -> None:
        super().take(reply)
        self._examples += reply.num_examples
        self._selected += _selected_of(reply)

    @override
    def weight_of(self, reply: ClientReply) -> float:
        by_selected = self.fedakd_ablation == "correct-agg"
        return _selected_of(reply) if by_selected else reply.num_examples

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        share = self._selected / self._examples if self._examples else 0.0
        self.round_metrics["selected_share"] = share
        return super().aggregate(arrays)


def _selected_of(reply: ClientReply) -> float:
    """Return the samples that a client selected: nobody can have more than there are."""
    return min(reply.metrics[SELECTED], reply.num_examples)
