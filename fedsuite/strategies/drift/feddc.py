"""FedDC: local drift decoupling and correction.

L. Gao, H. Fu, L. Li, Y. Chen, M. Xu, C.-Z. Xu, "FedDC: Federated Learning with Non-IID Data
via Local Drift Decoupling and Correction", CVPR 2022, arXiv:2203.11751.

Equations used, with m clients of M in the round and Delta_k = w_k - w_t:
client: SGD from w_t, K_k steps of rate eta, on
F_k(w) + alpha/2 ||w - (w_t - h_k)||^2 + <w, g - g_k>, then h_k <- h_k + Delta_k and
g_k+ = g_k - g - Delta_k / (K_k eta);
server: w_{t+1} = (1/m) sum_S w_k + (1/M) sum_k h_k, over all clients in the last sum,
g <- g + (1/M) sum_S (g_k+ - g_k).

Known to hold: g = (1/M) sum_k g_k; without the g terms this is FedDyn, with
lambda_k = -alpha h_k. The server works out h_k itself; models and the change of g_k travel.

Deviations. All clients count alike, as in the equations. The authors' code divides alpha
and g by omega_k = n_k / mean(n) and multiplies a client's change of g_k by it: the key
size-scaled, off by default. Each client uses its own K_k. Momentum and Adam are refused:
-Delta_k / (K_k eta) is the mean gradient of plain SGD alone. FedVARP and noise on uploads
are refused: the server could not work out Delta_k.
"""

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from fedsuite.method import (
    CONTROL,
    CONTROL_CHANGE,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    Exchange,
    Summed,
    key,
)
from fedsuite.strategies.drift.corrected import WITHOUT_SIZES, DriftStrategy


class FedDC(DriftStrategy):
    """Plain averaging of models, corrected by the clients' drift."""

    SUMS: ClassVar[Summed | None] = Summed(
        "clients",
        records=(CONTROL_CHANGE,),
        exact=True,
        needs={
            "size-scaled": (False, WITHOUT_SIZES),
            "feddc-gradient-terms": (
                True,
                "without them it is feddyn",
            ),
        },
    )
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDCClient", "keeps its drift", stores=True
    )

    feddc_alpha: float = key(
        default=0.01,
        help="weight of the pull to the drift-corrected model; 0 is none",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.001, 1.0),
    )
    feddc_gradient_terms: bool = key(
        default=True, help="send g - g_k, for twice the traffic; false is FedDyn"
    )

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        return (
            self.with_control(exchange, arrays) if self.feddc_gradient_terms else exchange
        )

    @override
    def take(self, reply: ClientReply) -> None:
        super().take(reply)
        if self.feddc_gradient_terms and reply.num_examples > 0:
            factor = self.size_factor(reply) * reply.num_summed
            change = reply.arrays[CONTROL_CHANGE].items()
            self.add_to_sum(CONTROL, {name: factor * array for name, array in change})
