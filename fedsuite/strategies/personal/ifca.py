"""IFCA: a model for each cluster of clients, and each client chooses its cluster by loss.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran, "An Efficient Framework for Clustered Federated
Learning", NeurIPS 2020, arXiv:2006.04088.

Equations used (Algorithm 1, model averaging), for client k and models w_1 .. w_G:

    m_k = argmin_m F_k(w_m), the first of equal ones,
    theta_k is w_{m_k} after the client's ordinary training,
    w_m <- the plain mean of theta_k over the clients of the round with m_k = m.

F_k is the mean loss on all training rows before training, in evaluation mode. A model that
no client chose stays. A client is scored with the model that it would choose. Rounds report
the clusters' sizes: one model may take all clients.

Known to hold: one model is FedAvg with equal weights, bit for bit. It is FOCUS where the
losses are so far apart that shares are 0 and 1. Deviation: how models differ at first, in
:mod:`fedsuite.strategies.personal.several_models`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    CLUSTER,
    Arrays,
    BadReply,
    ClientNeeds,
    ClientReply,
    Exchange,
    OneOf,
    key,
    model_record,
)
from fedsuite.rounds.kinds import Kind
from fedsuite.strategies.personal.several_models import SeveralModels


class IFCA(SeveralModels):
    """Averages several models, each over the clients that it fits best."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "IFCAClient", "trains the one of several models that fits it best"
    )

    ifca_models: int = key(
        default=2,
        help="models; 1 is FedAvg with equal weights",
        minimum=1,
        search=OneOf(2, 3, 4),
    )

    @override
    def num_models(self) -> int:
        return self.ifca_models

    @override
    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        return {CLUSTER: (0.0, self.ifca_models - 1.0)}

    @override
    def claims(self) -> Collection[str]:
        return (CLUSTER,)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        expected = replace(exchange.expected, one_of=True, check=_check_choice)
        return replace(exchange, expected=expected)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        names = list(self.models(arrays))
        chosen = np.array([[float(n in r.arrays) for n in names] for r in replies])
        for number, size in enumerate(chosen.sum(axis=0).tolist()):
            self.round_metrics[f"cluster_{number}_clients"] = size
        return self.averaged(arrays, replies, chosen)


def _check_choice(reply: ClientReply) -> None:
    """Refuse a model that is not the one that the client says it chose."""
    number = reply.metrics[CLUSTER]
    name = model_record(int(number)) if number else ARRAYS
    if name not in reply.arrays or number != int(number):
        reason = f"metric {CLUSTER} is {number:g}, and the record is another model's"
        raise BadReply(Kind.WRONG_METRICS, reason)
