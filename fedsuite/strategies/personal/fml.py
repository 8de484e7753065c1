"""FML: a shared and a personal model on each client learn from each other.

T. Shen, J. Zhang, X. Jia, F. Zhang, G. Huang, P. Zhou, K. Kuang, F. Wu, C. Wu, "Federated
Mutual Learning", arXiv:2006.16765.

Equations used: on each mini-batch, with predictions p of the personal model theta_k and q
of the shared model w, and the other model taken as constant,

    L_theta = alpha CE(p) + (1 - alpha) KL(q || p),
    L_w     = beta CE(q) + (1 - beta) KL(p || q).

Theta_k stays with the client, which is scored with it. The server averages w as FedAvg
does.

Known to hold: with alpha = beta = 1, w is FedAvg's and theta_k Standalone's, bit for bit
where layers draw nothing. Both models start alike. With alpha = beta they stay alike while
a client takes part alone.

Deviations from the authors' code (ZJU-DAI/Federated-Mutual-Learning), whose losses these
are: its mean is plain, personal models begin with random parameters of their own and may be
other networks, and their optimiser goes on from round to round, where it begins anew here.
PFLlib has another algorithm: it divides the divergences by the number of classes too, each
loss moves both models, and gradients are clipped to a norm of 10, for which there is
``clip-gradient-norm``.
"""

from typing import ClassVar

from fedsuite.method import TRAIN, ClientNeeds, OneOf, ScoredModel, key
from fedsuite.strategies.averaging.fedavg import FedAvg


class FML(FedAvg):
    """FedAvg whose clients distil from and into a personal model."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FMLClient", "keeps a personal model and distils both ways", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    SCORED_MODEL: ClassVar[ScoredModel] = "private"

    fml_alpha: float = key(
        default=0.5,
        help="share of the labels in the personal model's loss; 1 trains it alone",
        minimum=0.0,
        maximum=1.0,
        told=TRAIN,
        search=OneOf(0.25, 0.5, 0.75),
    )
    fml_beta: float = key(
        default=0.5,
        help="share of the labels in the shared model's loss; 1 is FedAvg",
        minimum=0.0,
        maximum=1.0,
        told=TRAIN,
        search=OneOf(0.25, 0.5, 0.75),
    )
