"""FOCUS: several models, of which each client learns by its losses which describe it.

W. Chu, C. Xie, B. Wang, L. Li, L. Yin, A. Nourian, H. Zhao, B. Li, "FOCUS: Fairness via
Agent-Awareness for Federated Learning on Heterogeneous Data", arXiv:2207.10265.

Equations used, for client k and models w_1 .. w_G, with pi_k = (1/G, .., 1/G) at first:

    E: pi_km <- pi_km exp(-F_k(w_m)) / sum_j pi_kj exp(-F_k(w_j)),
    M: theta_km is w_m after the client's ordinary training,
       w_m <- sum_k pi_km theta_km / sum_k pi_km   over the clients of the round,
    a client is scored with sum_m pi_km softmax(f_{w_m}(x)).

F_k is the mean loss on all training rows before training, in evaluation mode. A client that
never took part makes one step E before it is scored.

Known to hold: one model is FedAvg with equal weights, bit for bit. Equal models stay equal.
The same number added to all losses of a client changes nothing.

Deviations. The abstract could be read and the body not: the equations are the standard form
of this clustering. Without memory pi is that of the last losses alone; weights by examples
are n_k pi_km. Both are ours, as is how models differ at first:
:mod:`fedsuite.strategies.personal.several_models`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    EVALUATE,
    SHARES,
    TRAIN,
    Arrays,
    BadReply,
    ClientNeeds,
    ClientReply,
    Exchange,
    OneOf,
    examples_of,
    key,
)
from fedsuite.rounds.kinds import Kind
from fedsuite.strategies.personal.several_models import SeveralModels


class FOCUS(SeveralModels):
    """Averages several models, each by the clients' shares of it."""

    READING: ClassVar[str] = "our reading of the abstract"
    FIXED_REASON: ClassVar[str] = "shares of models cannot carry noise"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FOCUSClient", "trains all models and keeps its shares of them", stores=True
    )

    focus_models: int = key(
        default=2,
        help="models; 1 is FedAvg with equal weights",
        minimum=1,
        search=OneOf(2, 3, 4),
    )
    focus_memory: bool = key(
        default=True,
        help="whether shares go on from the last round; false takes the last losses alone",
        told=TRAIN,
    )
    focus_size_weights: bool = key(
        default=False, help="whether a client's shares count by its examples"
    )
    focus_inference: Literal["mixture", "largest"] = key(
        default="mixture",
        help="score clients with the mixture of all models, or with that of the largest "
        "share",
        told=EVALUATE,
    )

    @override
    def num_models(self) -> int:
        return self.focus_models

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        records = dict(exchange.expected.arrays)
        records[SHARES] = {SHARES: ((self.focus_models,), "float64")}
        expected = replace(exchange.expected, arrays=records, check=_check_shares)
        return replace(exchange, expected=expected)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        shares = np.stack([reply.arrays[SHARES][SHARES] for reply in replies])
        for reply, row in zip(replies, shares.tolist(), strict=True):
            named = {f"share_{number}": share for number, share in enumerate(row)}
            self.reports[TRAIN].annotate(reply.client_id, **named)
        if self.focus_size_weights:
            shares = shares * examples_of(replies)[:, None]
        return self.averaged(arrays, replies, shares)


def _check_shares(reply: ClientReply) -> None:
    """Refuse shares that are no shares of 1."""
    shares = reply.arrays[SHARES][SHARES]
    if not ((shares >= 0).all() and abs(float(shares.sum()) - 1.0) < 1e-6):
        reason = f"{SHARES} are no numbers of 0 or more whose sum is 1"
        raise BadReply(Kind.WRONG_ARRAYS, reason)
