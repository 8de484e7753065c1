"""FedMPR (our reading): clients prune their smallest weights while they train.

N. G. Goksu, N. Pugeault, "Robust Federated Learning in the Face of Covariate Shift: A
Magnitude Pruning with Hybrid Regularization Framework for Enhanced Model Aggregation",
arXiv:2412.15010.

From the paper's abstract: clients prune their models by magnitude, in stages, and train
with dropout and with noise that is injected into the network, against covariate shift.

Our reading, since the body could not be read. Local training has J stages of equally many
steps. At the end of stage j the floor(rho_j D) smallest of the D weights of all linear and
convolutional layers together become 0 and stay 0 for the round, with
rho_j = 1 - (1 - rho)^(j / J); ties go to the first. While it trains, the inputs of the
classifier get dropout and Gaussian noise. The server takes the plain mean of the clients'
models, zeros included. The next round begins with a dense model.

Known to hold: without pruning, dropout and noise it is FedAvg with equal weights, bit for
bit. FedAKD's paper compares with another form: ``prune-stages = 1``, ``prune-what =
"all"``, ``feature-dropout = 0``, ``feature-noise = 0``, ``optimizer = "adam"`` and
``weight-decay = 1e-4``; there the quantile of magnitudes is the bound, here the count.
Rates, the number of stages and where noise enters are ours; report results as "our
reading". One optimiser serves all stages of a round.
"""

from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    TRAIN,
    Between,
    ClientNeeds,
    ClientReply,
    OneOf,
    Release,
    Rule,
    Summed,
    alike,
    key,
)
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedMPR(FedAvg):
    """Plain mean of models whose smallest weights the clients set to 0."""

    READING: ClassVar[str] = "our reading of the abstract"
    RULES: ClassVar[tuple[Rule, ...]] = alike()
    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "each reply is one changed copy of the model, made and pruned by one client",
    )
    SUMS: ClassVar[Summed | None] = Summed("clients")
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedMPRClient", "prunes its model while it trains"
    )

    prune_share: float = key(
        default=0.1,
        help="share of the weights that a client sets to 0; 0 prunes none",
        minimum=0.0,
        maximum=1.0,
        told=TRAIN,
        search=Between(0.01, 0.5),
    )
    prune_stages: int = key(
        default=2, help="steps in which that share is reached", minimum=1, told=TRAIN
    )
    prune_what: Literal["weights", "all"] = key(
        default="weights",
        help="what is pruned: weights of linear and convolutional layers, or all that is "
        "trained",
        told=TRAIN,
    )
    feature_dropout: float = key(
        default=0.5,
        help="share of the classifier's inputs that training drops; 0 drops none",
        minimum=0.0,
        maximum=0.95,
        told=TRAIN,
        search=OneOf(0.0, 0.2, 0.5),
    )
    feature_noise: float = key(
        default=0.1,
        help="standard deviation of noise on the classifier's inputs; 0 adds none",
        minimum=0.0,
        told=TRAIN,
    )

    @override
    def weight_of(self, reply: ClientReply) -> float:
        return float(reply.num_examples > 0)
