"""MOON: local training whose features stay near those of the received model.

Q. Li, B. He, D. Song, "Model-Contrastive Federated Learning", CVPR 2021, arXiv:2103.16257.

Equation used: clients minimise the mean over rows of

    CE - mu log(exp(cos(z, z_g) / T) / (exp(cos(z, z_g) / T) + exp(cos(z, z_p) / T)))

with z the features of the trained model, z_g those of the received one, and z_p those of
the client's own model after its last training, of one that never trained those of the
initial model. The server averages as FedAvg does.

Known to hold: mu = 0 is FedAvg, and so is the first round of all, in which z_p = z_g and
the term has no gradient.

Deviations: features are the inputs of the last linear layer, without the paper's projection
head of two layers, which would be another network. Both anchors are in evaluation mode. In
the authors' code (QinbinLi/MOON) each client begins with random parameters of its own, so
that the first round has a contrast too; PFLlib has one initial model, as here.
"""

from typing import ClassVar

from fedsuite.method import TRAIN, Between, ClientNeeds, Unless, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class MOON(FedAvg):
    """FedAvg whose clients contrast their features with the received model's."""

    READING: ClassVar[str] = "without the paper's projection head"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "MOONClient", "contrasts features and keeps its last model", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    FEATURE_WEIGHT: ClassVar[str] = "moon-weight"

    moon_weight: float = key(
        default=5.0,
        help="weight mu of the contrast; 0 is FedAvg",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.1, 10.0),
    )
    moon_temperature: float = key(
        default=0.5,
        help="temperature T of the contrast",
        above=0.0,
        told=TRAIN,
        needs=(Unless("moon-weight", 0.0),),
    )
