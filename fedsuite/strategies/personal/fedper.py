"""FedPer: a shared body, and a classifier of its own for each client.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with
Personalization Layers", arXiv:1912.00818.

Client k trains the received body beta and its own head psi_k jointly; the server averages
bodies, beta_{t+1} = sum_k (n_k / n) beta_k. Deviation: the head is the last linear layer;
the paper also tries several blocks.
"""

from typing_extensions import override

from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies.personal.partial import PartialAverage


class FedPer(PartialAverage):
    """Averages all but the head, weighted by examples."""

    @override
    def shares(self, groups: ParameterGroups) -> frozenset[str]:
        return groups.body
