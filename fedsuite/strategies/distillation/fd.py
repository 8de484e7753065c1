"""Federated distillation (FD): clients imitate the others' mean output per label.

E. Jeong, S. Oh, H. Kim, J. Park, M. Bennis, S.-L. Kim, "Communication-Efficient On-Device
Machine Learning: Federated Distillation and Augmentation under Non-IID Private Data",
NeurIPS workshop 2018, arXiv:1811.11479.

With out_n a client's softmax (``fd-space`` prob) or logits (logit), and M_n[k] the mean of
out_n over the samples of class k that it trains on, a round is

    loss(x, y) = CE(f_n(x), y) + gamma phi(f_n(x), G_n[y])         at each local step,
    G_n[k] = mean of M_m[k] over the clients m != n that have class k     at the server.

The mean is not weighted and leaves the client itself out. With t = G_n[y], or its softmax
if it is a logit, phi is the cross-entropy -sum_k t_k log p_k, the divergence
sum_k t_k log(t_k / p_k), or the mean over k of (out_n - G_n[y])^2: the mean over the batch,
in which a sample whose label has no target counts as 0.

Known to hold: gamma = 0 is local training, bit for bit; of two clients each gets the
other's table.

Deviations, and what the paper leaves open. Authors' code was not found. "Logit" is the
softmax's output in a later paper of theirs: the default; ``fd-space`` has the other
reading. M_n is gathered anew in each round, while the weights still move (``fd-pass``
online), or by one pass over all data after training in evaluation mode (``end``). gamma is
not known: 1. G_n is made of the tables of the last round that counted: a client that was
absent has none in it, and may still receive one. Tables travel once per round.

A client tells which classes it has, and its mean output for each. Means of few examples
tell much; of a class with one row the mean is the model's output on that row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.method import (
    TRAIN,
    Arrays,
    BadReply,
    Between,
    ClientNeeds,
    ClientReply,
    ConfigValue,
    grouped,
    joined,
    key,
    state,
)
from fedsuite.rounds.kinds import Kind
from fedsuite.strategies.distillation.class_tables import ClassTables, packed, table_of

Space = Literal["prob", "logit"]
Match = Literal["ce", "kl", "mse"]
Pass = Literal["online", "end"]

TOLERANCE = 1e-3
"""How far a sum of probabilities in float32 may be from 1."""


class FD(ClassTables):
    """Clients send their mean output per class, and get the others' means."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FDClient", "answers with the mean outputs of its classes"
    )

    fd_weight: float = key(
        default=1.0,
        help="weight gamma of the regulariser; 0 is local training",
        minimum=0.0,
        told=TRAIN,
        search=Between(0.05, 5.0),
    )
    fd_space: Space = key(
        default="prob", help="averages softmax outputs or logits", told=TRAIN
    )
    fd_loss: Match = key(
        default="ce", help="cross-entropy, divergence, or squared distance", told=TRAIN
    )
    fd_pass: Pass = key(
        default="online",
        help="when averages are taken: in local training, or by a pass at its end",
        told=TRAIN,
    )

    tables: dict[int, NDArray[Any]] = state(default_factory=dict)
    present: dict[int, NDArray[np.bool_]] = state(default_factory=dict)

    @override
    def row_width(self) -> int:
        return self.num_classes

    @override
    def check(self, reply: ClientReply) -> None:
        super().check(reply)
        rows, counts = table_of(reply)
        if self.fd_space == "prob":
            sums = rows[counts > 0].sum(axis=1, dtype=np.float64)
            if (rows < 0).any() or (abs(sums - 1) > TOLERANCE).any():
                reason = "the table has rows that are no probabilities"
                raise BadReply(Kind.WRONG_ARRAYS, reason)

    @override
    def take_tables(self, replies: Sequence[ClientReply]) -> None:
        self.tables, self.present = {}, {}
        for reply in replies:
            rows, counts = table_of(reply)
            self.tables[reply.client_id] = rows.copy()
            self.present[reply.client_id] = counts > 0
        covered = np.any(list(self.present.values()), axis=0)
        self.round_metrics["classes_covered"] = float(covered.sum())

    @override
    def own_rows(self, client_ids: Sequence[int]) -> dict[int, Arrays]:
        if not self.tables:
            return {}
        means = others_means(self.tables, self.present, client_ids)
        return {k: packed(*mean) for k, mean in means.items()}

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        held = {k: {"rows": t, "present": self.present[k]} for k, t in self.tables.items()}
        return joined(held), {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        held = {int(client_id): table for client_id, table in grouped(arrays).items()}
        self.tables = {k: table["rows"] for k, table in held.items()}
        self.present = {k: table["present"] for k, table in held.items()}


def others_means(
    tables: Mapping[int, NDArray[Any]],
    present: Mapping[int, NDArray[np.bool_]],
    client_ids: Sequence[int],
) -> dict[int, tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Return by client the mean of each row over the others that have it, and whether any.

    Tables are ``[classes, width]``, of at least one client. To a client without a table all
    are others.
    """
    known = sorted(tables)
    rows = np.array([tables[k] * present[k][:, np.newaxis] for k in known], np.float64)
    held = np.array([present[k] for k in known], np.int64)
    place = {client_id: index for index, client_id in enumerate(known)}
    sums, counts = _sums_of_others(rows), _sums_of_others(held)
    means = {}
    for client_id in client_ids:
        index = place.get(client_id, len(known))
        count = counts[index]
        means[client_id] = sums[index] / np.maximum(count, 1)[:, np.newaxis], count > 0
    return means


def _sums_of_others(entries: NDArray[Any]) -> NDArray[Any]:
    """Return by entry the sum of all others, and last the sum of all.

    Nothing is subtracted, so nothing cancels.
    """
    none = np.zeros_like(entries[:1])
    before = np.concatenate([none, np.cumsum(entries, axis=0)])
    after = np.concatenate([np.cumsum(entries[::-1], axis=0)[::-1], none])
    return np.concatenate([before[:-1] + after[1:], before[-1:]])
