"""Federated distillation: clients imitate the others' mean output for each label.

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
reading. M_n is gathered while the weights still move (``fd-pass`` online) and anew in each
round; ``end`` makes one pass over all data after training, in evaluation mode. gamma is not
known: 1. G_n is made of the tables of the last round that counted: a client that was not
there has none in it, and may still receive one. Tables travel once a round, as often as
models would.

What leaves a client tells which classes it has, and its mean output for each; means of few
examples tell much, and of a class with one row the mean is the model's output on that row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.search import Between
from fedsuite.core.settings import key, state
from fedsuite.messages.records import TRAIN, Arrays, ConfigValue
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.validation import BadReply, ClientReply
from fedsuite.strategies.distillation.class_tables import (
    ClassTables,
    packed,
    table_of,
)

Space = Literal["prob", "logit"]
Match = Literal["ce", "kl", "mse"]
Pass = Literal["online", "end"]

TOLERANCE = 1e-3
"""How far a sum of probabilities in float32 may be from 1."""


class FD(ClassTables):
    """A table of mean outputs, a row a class, goes up and the others' mean comes down."""

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

    def row_width(self) -> int:
        """Return the number of classes: a row is an output."""
        return self.num_classes

    def check(self, reply: ClientReply) -> None:
        """Refuse also what is not a mean of softmax outputs, where these are averaged."""
        super().check(reply)
        rows, counts = table_of(reply)
        if self.fd_space == "prob":
            sums = rows[counts > 0].sum(axis=1, dtype=np.float64)
            if (rows < 0).any() or (abs(sums - 1) > TOLERANCE).any():
                raise BadReply("the table has rows that are no probabilities")

    def take(self, replies: Sequence[ClientReply]) -> None:
        """Keep the tables of this round."""
        self.tables, self.present = {}, {}
        for reply in replies:
            rows, counts = table_of(reply)
            self.tables[reply.client_id] = rows.copy()
            self.present[reply.client_id] = counts > 0
        covered = np.any(list(self.present.values()), axis=0)
        self.round_metrics["classes_covered"] = float(covered.sum())

    def own_rows(self, client_ids: Sequence[int]) -> dict[int, Arrays]:
        """Return G_n: the others' means, of the classes that any of them has."""
        if not self.tables:
            return {}
        means = others_means(self.tables, self.present, client_ids)
        return {k: packed(*mean) for k, mean in means.items()}

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return the tables, by client."""
        state: dict[str, NDArray[Any]] = {}
        for client_id, table in self.tables.items():
            state[f"{client_id}/rows"] = table
            state[f"{client_id}/present"] = self.present[client_id]
        return state, {}

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take them back."""
        self.tables, self.present = {}, {}
        for path, array in arrays.items():
            client_id, _, name = path.partition("/")
            if name == "rows":
                self.tables[int(client_id)] = array
            else:
                self.present[int(client_id)] = array


def others_means(
    tables: Mapping[int, NDArray[Any]],
    present: Mapping[int, NDArray[np.bool_]],
    client_ids: Sequence[int],
) -> dict[int, tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Return by client the mean of each row over the others that have it, and whether any.

    Parameters
    ----------
    tables, present
        Client to rows ``[classes, width]``, and to which of them it has; at least one.
    client_ids
        Clients to return it for. One without a table has all others.
    """
    known = sorted(tables)
    rows = np.array([tables[k] * present[k][:, np.newaxis] for k in known], np.float64)
    held = np.array([present[k] for k in known], np.int64)
    place = {client_id: index for index, client_id in enumerate(known)}
    sums, counts = _SumsOfOthers(rows), _SumsOfOthers(held)
    means = {}
    for client_id in client_ids:
        count = counts.without(place.get(client_id))
        total = sums.without(place.get(client_id))
        means[client_id] = total / np.maximum(count, 1)[:, np.newaxis], count > 0
    return means


class _SumsOfOthers:
    """Sums over all entries but one, without subtracting: nothing cancels."""

    def __init__(self, entries: NDArray[Any]) -> None:
        self._none = np.zeros_like(entries[0])
        self._up_to = np.cumsum(entries, axis=0)
        self._from = np.cumsum(entries[::-1], axis=0)[::-1]

    def without(self, index: int | None) -> NDArray[Any]:
        """Return the sum without an entry, None for that of all."""
        if index is None:
            total: NDArray[Any] = self._up_to[-1]
            return total
        before = self._up_to[index - 1] if index > 0 else self._none
        after = self._from[index + 1] if index + 1 < len(self._from) else self._none
        others: NDArray[Any] = before + after
        return others
