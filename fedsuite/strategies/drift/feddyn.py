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
by omega_k = n_k / mean(n): the key size-scaled, off by default. That code adds the term
alpha w through the optimiser's weight decay, after clipping; here it is a part of the
gradient that is clipped. Momentum and Adam are refused: the authors' local solver is plain
SGD. FedVARP and noise on uploads are refused: the server could not work out Delta_k.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Unpack

from fedsuite.core.keys import Key
from fedsuite.messages.records import Arrays
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.strategies.drift.corrected import DriftOptions, DriftStrategy


class FedDyn(DriftStrategy):
    """Plain averaging, corrected by the mean of the clients' linear terms.

    Parameters
    ----------
    feddyn_alpha
        Weight alpha of the dynamic regulariser, above 0. It has no value that gives
        FedAvg: with a tiny one the server still adds the mean drift.
    options
        Keywords of :class:`~fedsuite.strategies.drift.corrected.DriftStrategy`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDynClient", "keeps its linear term", stores=True
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *DriftStrategy.KEYS,
        Key(
            "feddyn-alpha",
            0.01,
            "weight alpha of FedDyn's dynamic regulariser",
            above=0.0,
        ),
    )

    def __init__(
        self, *, feddyn_alpha: float = 0.01, **options: Unpack[DriftOptions]
    ) -> None:
        if not feddyn_alpha > 0:
            raise ValueError(f"feddyn_alpha = {feddyn_alpha}: expected a number > 0")
        super().__init__(**options)
        self.feddyn_alpha = feddyn_alpha

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send alpha along with the model."""
        exchange = super().train_exchange(arrays, client_ids)
        config = {**exchange.config, "feddyn-alpha": self.feddyn_alpha}
        return replace(exchange, config=config)
