"""FedAvg: federated averaging.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017, arXiv:1602.05629.

Equation used (Algorithm 1): w_{t+1} = sum_k (n_k / n) w_{t+1}^k over the sampled clients,
with n the examples of those that answered. Deviation: none.
"""

import logging
from collections.abc import Iterator

from fedsuite.records import ARRAYS, Arrays
from fedsuite.strategies.aggregation import WeightedMean
from fedsuite.strategies.base import FederatedStrategy
from fedsuite.strategies.validation import ClientReply

logger = logging.getLogger(__name__)


class FedAvg(FederatedStrategy):
    """Average of the clients' models, weighted by their numbers of examples.

    Takes the keywords of :class:`~fedsuite.strategies.base.FederatedStrategy`. Replies
    without examples only keep the model as it was.
    """

    def aggregate(self, arrays: Arrays, replies: Iterator[ClientReply]) -> Arrays | None:
        """Return the mean of the clients' arrays, taking one client at a time."""
        mean = WeightedMean()
        for reply in replies:
            mean.add(reply.arrays[ARRAYS], reply.num_examples)
        if mean.total_weight == 0:
            logger.warning("no client has examples: the model stays as it was")
        return mean.result()
