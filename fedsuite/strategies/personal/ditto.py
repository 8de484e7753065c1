"""Ditto: a personal model on each client, held near the global one.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, arXiv:2012.04221.

Equations used (Algorithm 1): the global model w is FedAvg's. A client of the round also
takes s steps v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w_t)) from the personal model
that it keeps, w_t being the model it received; v_k starts as w_0.

Known to hold: w is FedAvg's, bit for bit, whatever lambda; lambda = 0 trains v_k locally.

Deviations. w is averaged by numbers of examples; the authors' code samples clients by size
and takes the plain mean. Personal steps come after the global ones, on mini-batches of
their own; the authors' code alternates both on the same mini-batch. Clients are scored with
v_k, which is w_0 for one that was never sampled, as in the authors' code. All clients have
one lambda. v_k also moves in a round that misses its quorum.
"""

from typing import ClassVar

from fedsuite.method import TRAIN, Between, ClientNeeds, ScoredModel, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class Ditto(FedAvg):
    """FedAvg whose clients train and keep a personal model beside the global one."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "DittoClient", "keeps a personal model", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"

    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    ditto_lambda: float = key(
        default=1.0,
        help="pull of personal models to the global one; 0 trains them alone",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.01, 10.0),
    )
    ditto_local_epochs: int = key(
        default=0, help="0 with no steps trains as the global model", minimum=0, told=TRAIN
    )
    ditto_local_steps: int = key(
        default=0, help="0 counts ditto-local-epochs", minimum=0, told=TRAIN
    )
    ditto_learning_rate: float = key(
        default=0.0, help="0 is learning-rate", minimum=0.0, told=TRAIN
    )
