"""What a phase of a round reports: one row a client, what was refused, bytes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsuite.core.metrics import counted_in, has_score
from fedsuite.core.tasks import CONFUSION_COLUMN, ONE_CLASS, SCORES
from fedsuite.rounds.aggregation import mean_metrics
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.validation import ClientReply

Row = dict[str, float | int | str]

CLAIMED = "claimed_examples"

FAILED = "round_failed"
"""Metric of a round whose training came to nothing: 1; other rounds have none."""

OF_A_CLIENT = frozenset(
    {"client", "update_norm", "norm_ratio", "weight", "clipped", CLAIMED}
)
"""Columns that have no mean: they compare a client with the others."""

RESERVED = OF_A_CLIENT | {"num_examples", "round", "phase"}
"""Columns that the server fills; metrics of these names are left out of a report."""

_SCORED = ("loss", *(score.column for score in SCORES.values()))

ONE_CLASS_COLUMN = ONE_CLASS.replace("-", "_")

OTHER_WEIGHTS = {
    "received_training_loss": "training_examples",
    **{
        f"{model}whole_test_{score}": f"{model}whole_test_examples"
        for model in ("", "global_", "trained_")
        for score in _SCORED
    },
    **{
        f"{model}validation_{score}": f"{model}validation_examples"
        for model in ("", "global_", "trained_", "plain_mean_", "refreshed_")
        for score in _SCORED
    },
    "validation_prototype_accuracy": "validation_examples",
}
"""Columns that were not measured on what ``num_examples`` counts, and what counts there."""


@dataclass
class PhaseReport:
    """Report of the training or the evaluation of one round.

    Parameters
    ----------
    phase
        ``train``, ``evaluate``, or ``new``: evaluation of clients that never train.
    names
        Client to its registered name, where it has one.
    rejections, bounded
        Replies that were not used, and those of which less counted than they said.
    suspected
        Clients whose replies to an earlier round may have poisoned the model.
    left_out
        Metric to the clients that reported it as NaN, infinite or out of its range, and
        the number, in replies that count.
    """

    phase: str
    names: Mapping[int, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    bounded: list[Rejection] = field(default_factory=list)
    suspected: list[Rejection] = field(default_factory=list)
    left_out: dict[str, dict[int, float]] = field(default_factory=dict)
    num_asked: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    _row_of: dict[int, Row] = field(default_factory=dict, repr=False)

    def add(self, reply: ClientReply) -> None:
        """Take in the metrics of one good reply."""
        row: Row = {
            "client": self.names.get(reply.client_id, reply.client_id),
            "num_examples": reply.num_examples,
        }
        if reply.claimed_examples is not None:
            row[CLAIMED] = reply.claimed_examples
        for key, value in reply.metrics.items():
            name = key.replace("-", "_")
            if name not in RESERVED:
                row[name] = value
        self.rows.append(row)
        self._row_of[reply.client_id] = row

    def annotate(self, client_id: int, **values: float) -> None:
        """Add columns to a client's row, such as the weight that the method gave it.

        Nothing happens for a client without a row: one with no good reply.
        """
        self._row_of.get(client_id, {}).update(values)

    def tell_clipped(self) -> None:
        """Add ``clipped`` to each row: 1 if less of the reply counts than it said."""
        bounded = {rejection.client_id for rejection in self.bounded}
        for client_id in self._row_of:
            self.annotate(client_id, clipped=float(client_id in bounded))

    def of_clients(self, name: str) -> dict[int, float]:
        """Return one column by client, of those that have it."""
        return {k: float(row[name]) for k, row in self._row_of.items() if name in row}

    def weights(self) -> dict[int, float]:
        """Return each client's weight in the method, or else its number of examples."""
        weighed = all("weight" in row for row in self._row_of.values())
        name = "weight" if weighed else "num_examples"
        return {k: float(row[name]) for k, row in self._row_of.items()}

    def numeric_rows(self) -> list[dict[str, float]]:
        """Return the rows without what has no mean, and without scores of no rows."""
        return [
            {
                key: float(v)
                for key, v in row.items()
                if key not in OF_A_CLIENT and has_score(row, key)
            }
            for row in self.rows
        ]

    def is_named(self, name: str) -> bool:
        """Return whether a reply names a metric, as a number that counts or not."""
        left_out = (metric.replace("-", "_") for metric in self.left_out)
        return name in left_out or any(name in row for row in self.rows)

    def column(self, name: str) -> list[float]:
        """Return one metric of all clients that reported it, in client order."""
        return [float(row[name]) for row in self.rows if name in row]

    def accuracies(self, name: str = "accuracy") -> list[float]:
        """Return the accuracies that count, in client order."""
        return [float(row[name]) for row in self.rows if has_score(row, name)]

    def num_to_score(self, name: str = "accuracy") -> int:
        """Return how many clients were asked, without those that have no such rows."""
        without = sum(row.get(counted_in(name)) == 0 for row in self.rows)
        return max(self.num_asked, len(self.rows)) - without

    def means(self) -> dict[str, float]:
        """Return the means of the metrics, weighted by examples; empty of no replies.

        A metric has a mean if at least half of the replies name it, as a number that
        counts or not: so no few clients can add a metric, or take one away. Where not all
        have a number, ``NAME_clients`` is how many have.
        """
        rows = self.numeric_rows()
        means = mean_metrics(rows, "num_examples")
        # A score of no rows is named, and has no number.
        names = Counter(n for row in self.rows for n in row if n not in OF_A_CLIENT)
        of_no_rows = names - Counter(name for row in rows for name in row)
        for metric, clients in self.left_out.items():
            names[metric.replace("-", "_")] += len(clients)
        for name, count in names.items():
            if name.endswith(ONE_CLASS_COLUMN) or CONFUSION_COLUMN.search(name):
                # A class has no mean, and rows are counted together.
                means.pop(name, None)
                continue
            having = [row for row in rows if name in row]
            if not having or 2 * count < len(rows):
                continue
            weight = OTHER_WEIGHTS.get(name, "num_examples")
            if not all(weight in row for row in having):
                weight = "num_examples"
            if name not in means or weight != "num_examples":
                pairs = [{name: r[name], weight: max(r[weight], 0.0)} for r in having]
                means[name] = mean_metrics(pairs, weight)[name]
            if len(having) + of_no_rows[name] < len(rows):
                means[f"{name}_clients"] = len(having)
        return means

    def medians(self) -> dict[str, float]:
        """Return the medians over clients of losses that were scored, by ``NAME_median``.

        A client that lies moves a mean of losses as far as it likes, a median no further
        than to what another says.
        """
        names = dict.fromkeys(name for row in self.rows for name in row)
        scores = {
            name: [float(row[name]) for row in self.rows if has_score(row, name)]
            for name in names
            if name.endswith("loss")
        }
        return {f"{n}_median": float(np.median(v)) for n, v in scores.items() if v}
