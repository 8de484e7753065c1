"""pFedMe: personal models within a Moreau envelope around the global one.

C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized Federated Learning with Moreau
Envelopes", NeurIPS 2020, arXiv:2006.08848.

Equations used: w_k = theta = w at first. For each mini-batch, K steps on that mini-batch,
theta <- theta - eta_p (grad F(theta) + lambda (theta - w_k)), then
w_k <- w_k - eta lambda (w_k - theta). The server takes w <- w + beta (mean of w_k - w).
Clients are scored with theta. Eta_p is the experiment's learning rate.

Known to hold: lambda = 0 or beta = 0 leaves w where it is.

Deviations from the authors' code (CharlieDinh/pFedMe). All its clients train in each round,
of which the drawn ones count; here the drawn ones train. Its "local epoch" is one
mini-batch; here local work is the experiment's. Its weight decay is 0.001; here none unless
the experiment sets one. Its list of theta is the model's own parameters, which w_k then
overwrites, so that it scores w_k; here theta is scored. As there, the mean is by examples.
"""

from typing import ClassVar

from typing_extensions import override

from fedsuite.method import (
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    Rule,
    ScoredModel,
    key,
    step_towards,
)
from fedsuite.strategies.averaging.fedavg import FedAvg


class PFedMe(FedAvg):
    """Averages models that clients pull towards their personal ones."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "PFedMeClient", "keeps a personal model near the received one", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("pfedme-lambda", "pfedme-learning-rate"),
            (lambda v: v["pfedme-lambda"] * v["pfedme-learning-rate"] >= 1,),
            "their product must be below 1",
            "lower one of them",
        ),
    )

    pfedme_lambda: float = key(
        default=15.0,
        help="pull of personal models to the received one; 0 never moves the global model",
        minimum=0.0,
        told=TRAIN,
        search=Between(1.0, 30.0),
    )
    pfedme_learning_rate: float = key(
        default=0.005,
        help="step eta of w_k to the personal model; times lambda below 1",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.003, 0.03),
    )
    pfedme_inner_steps: int = key(
        default=5, help="steps K on each mini-batch", minimum=1, told=TRAIN
    )
    pfedme_server_step: float = key(
        default=1.0,
        help="share beta of the way to the clients' mean; 0 leaves the model as it is",
        minimum=0.0,
    )

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        mean = super().aggregate(arrays)
        return None if mean is None else step_towards(arrays, mean, self.pfedme_server_step)
