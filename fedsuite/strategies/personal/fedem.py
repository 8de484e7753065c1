"""FedEM: each client's rows are a mixture of a few sources, with one model for each.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal, "Federated Multi-Task Learning under a
Mixture of Distributions", NeurIPS 2021, arXiv:2108.10252; authors' code omarfoq/FedEM.

Equations used (Algorithm 1), for client k, its row i of loss l_im under model w_m, and
pi_k = (1/G, .., 1/G) at first:

    E: s_im = pi_km exp(-l_im) / sum_j pi_kj exp(-l_ij),   pi_km <- mean_i s_im,
    M: theta_km is w_m after training on mean_i s_im l_im over mini-batches,
       w_m <- sum_k n_k theta_km / sum_k n_k   over the clients of the round,
    a client is scored with sum_m pi_km softmax(f_{w_m}(x)).

Losses of E are of all training rows before training, in evaluation mode. A client keeps
pi_k and sends it to nobody. One that never took part makes one step E before it is scored.

Known to hold: one model is FedAvg, bit for bit. Equal models stay equal where they weigh
alike. The same number added to all losses of a row changes nothing. The authors' code
takes s from the training file too, though it calls the iterator one of validation.

Deviations: all models train on the same mini-batches. The authors' mean is over all
clients, of which those that were not drawn hold the received models. Their client that
never took part weighs all models alike when it is scored. How models differ at first is in
:mod:`fedsuite.strategies.personal.several_models`.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import Arrays, ClientNeeds, ClientReply, OneOf, Value, examples_of, key
from fedsuite.strategies.personal.several_models import SeveralModels


class FedEM(SeveralModels):
    """Averages several models, which clients train on what each explains of their rows."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedEMClient", "weighs its rows for each model and keeps its shares", stores=True
    )
    FIXED: ClassVar[Mapping[str, Value]] = {
        **SeveralModels.FIXED,
        "loss": "auto",
        "class-weights": "",
        "logit-calibration": 0.0,
    }
    FIXED_REASON: ClassVar[str] = "it weighs the cross-entropies of several models"

    fedem_models: int = key(
        default=3, help="models; 1 is FedAvg", minimum=1, search=OneOf(2, 3, 4)
    )

    @override
    def num_models(self) -> int:
        return self.fedem_models

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        counts = np.outer(examples_of(replies), np.ones(self.fedem_models))
        return self.averaged(arrays, replies, counts)
