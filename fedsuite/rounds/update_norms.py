"""How long each client's update is, for ``clients.jsonl``.

A row gets the length of the update as it came, ``update_norm``, and that length over the
round's median, ``norm_ratio``. Nothing that a method computes is read or changed.
"""

from dataclasses import dataclass, field

import numpy as np

from fedsuite.messages.records import ARRAYS
from fedsuite.rounds.changes import Changes, length, trained
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply


@dataclass
class UpdateNorms:
    """Measures a round's updates as they come, and writes them into the round's report."""

    _norms: dict[int, float] = field(default_factory=dict)
    _changes: Changes = field(default_factory=Changes, repr=False)

    def begin(self) -> None:
        """Forget the last round."""
        self._norms = {}

    def take(self, exchange: Exchange, reply: ClientReply) -> None:
        """Measure a reply as it came; one without a trained model is passed over."""
        own = exchange.own.get(reply.client_id, {})
        start = own.get(ARRAYS) or exchange.shared.get(ARRAYS)
        model = reply.arrays.get(ARRAYS)
        if start and model:
            norm = length(trained(model), start, self._changes)
            self._norms[reply.client_id] = reply.lengths[ARRAYS, id(start)] = norm

    def tell(self, report: PhaseReport) -> None:
        """Add the columns to the clients' rows."""
        weights = report.weights()
        norms = {k: norm for k, norm in self._norms.items() if k in weights}
        median = float(np.median(list(norms.values()))) if norms else 0.0
        for client_id, norm in norms.items():
            ratio = {"norm_ratio": norm / median} if median > 0 else {}
            report.annotate(client_id, update_norm=norm, **ratio)
