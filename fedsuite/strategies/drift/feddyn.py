"""FedDyn: federated learning with dynamic regularisation.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama,
"Federated Learning Based on Dynamic Regularization", ICLR 2021, arXiv:2111.04263.

Equations used, with m clients of M in the round and Delta_k = w_k - w_t:
client: SGD from w_t on F_k(w) - <lambda_k, w> + alpha/2 ||w - w_t||^2, then
lambda_k <- lambda_k - alpha Delta_k;
server: H <- H - (alpha/M) sum_S Delta_k, w_{t+1} = (1/m) sum_S w_k - H / alpha.

The server keeps the sum of h_k = -lambda_k / alpha, as the authors' code does, so that
-H / alpha is the mean of h_k; it works out Delta_k itself, and only models travel.

Known to hold: H = (1/M) sum_k lambda_k; after a first round of all clients the model is
w_0 + 2 mean(Delta), a doubled step by construction.

Deviations. The mean is plain, as in the paper. The authors' code divides a client's alpha
by omega_k = n_k / mean(n): the key size-scaled, off by default. It adds alpha w through the
optimiser's weight decay, after clipping; here clipping includes it. Momentum and Adam are
refused: the authors' local solver is plain SGD. FedVARP and noise on uploads are refused:
the server could not work out Delta_k.
"""

from typing import ClassVar

from fedsuite.method import TRAIN, Between, ClientNeeds, Summed, key
from fedsuite.strategies.drift.corrected import WITHOUT_SIZES, DriftStrategy


class FedDyn(DriftStrategy):
    """Plain averaging, corrected by the mean of the clients' linear terms.

    No alpha gives FedAvg: with a tiny one the server still adds the mean drift.
    """

    SUMS: ClassVar[Summed | None] = Summed(
        "clients", exact=True, needs={"size-scaled": (False, WITHOUT_SIZES)}
    )
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDynClient", "keeps its linear term", stores=True
    )

    feddyn_alpha: float = key(
        default=0.01,
        help="weight of the dynamic regulariser",
        above=0.0,
        told=TRAIN,
        search=Between(0.001, 1.0),
    )
