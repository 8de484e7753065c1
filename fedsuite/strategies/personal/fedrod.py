"""FedRoD: a generic predictor of balanced risk, and a personal head on its features.

H.-Y. Chen, W.-L. Chao, "On Bridging Generic and Personalized Federated Learning for Image
Classification", ICLR 2022, arXiv:2107.00778.

Equations used: client k trains the shared model on the balanced softmax,
-log (n_ky exp z_y / sum_c n_kc exp z_c), with n_kc its examples of class c. Its personal
head learns on the features, without moving them, the cross-entropy of generic plus personal
logits. The server averages the shared model as FedAvg does. Clients are scored with the sum
of both logits.

Known to hold: where each client has as many examples of each class, the shared model is
FedAvg's up to rounding. Deviations: the linear head alone, without the hyper-network; the
personal head starts at zero, so that a client which never trained is scored with the
generic one.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedsuite.method import UNARGUED, ClientNeeds, Release, ScoredModel, Value
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedRoD(FedAvg):
    """FedAvg of balanced losses, with a personal head on each client."""

    READING: ClassVar[str] = "without the paper's hyper-network"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedRoDClient", "balances its loss and keeps a personal head", stores=True
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient app stores nothing between rounds"
    PRIVACY: ClassVar[Release] = UNARGUED
    SCORED_MODEL: ClassVar[ScoredModel] = "private"
    FIXED: ClassVar[Mapping[str, Value]] = {"logit-calibration": 0.0}
    FIXED_REASON: ClassVar[str] = "it balances the logits itself"
