"""How long each client's update is, for ``clients.jsonl``.

A row gets the length of the update as it came, ``update_norm``, and that length over the
round's median, ``norm_ratio``. Nothing that a method computes is read or changed.
"""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.messages.records import ARRAYS, TRAIN
from fedsuite.rounds.changes import Changes, length, trained
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.stage import Stage
from fedsuite.rounds.validation import ClientReply


class UpdateNorms(Stage):
    """Measures a round's updates as they come, and writes them into the round's report."""

    name: ClassVar[str] = "update-norms"

    def __init__(self) -> None:
        self._norms: dict[int, float] = {}
        self._changes = Changes()
        self._exchange = Exchange("", ())

    def begin(self) -> None:
        """Forget the last round."""
        self._norms = {}

    @override
    def open(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        exchange = self._exchange
        if exchange.message_type != TRAIN:
            return (reply,)
        own = exchange.own.get(reply.client_id, {})
        start = own.get(ARRAYS) or exchange.shared.get(ARRAYS)
        model = reply.arrays.get(ARRAYS)
        if start and model:
            norm = length(trained(model), start, self._changes)
            self._norms[reply.client_id] = reply.lengths[ARRAYS, id(start)] = norm
        return (reply,)

    def tell(self, report: PhaseReport) -> None:
        """Add the columns to the clients' rows."""
        weights = report.weights()
        norms = {k: norm for k, norm in self._norms.items() if k in weights}
        median = float(np.median(list(norms.values()))) if norms else 0.0
        for client_id, norm in norms.items():
            ratio = {"norm_ratio": norm / median} if median > 0 else {}
            report.annotate(client_id, update_norm=norm, **ratio)
