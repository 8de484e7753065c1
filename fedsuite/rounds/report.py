"""What a phase of a round reports: one row a client, what was refused, bytes, means.

The metrics have weighted means, or become what a function makes of them: Flower's
strategies take such functions as ``train_metrics_aggr_fn`` and
``evaluate_metrics_aggr_fn``, which mean the same here.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.core.errors import described, one_line
from fedsuite.core.logs import ServerLogger
from fedsuite.core.metrics import counted_in, has_score
from fedsuite.core.tasks import CONFUSION_COLUMN, ONE_CLASS, SCORES
from fedsuite.messages.records import NUM_EXAMPLES, records_of
from fedsuite.rounds.aggregation import mean_metrics
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.stage import Stage
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


logger = ServerLogger(__name__)

_MOST_WARNINGS = 20
"""Names that a run's log has a warning of: a client may report new ones in each round."""

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
"""Takes the contents of all good replies, in client-id order, and the weight's key."""


class MetricMeans(Stage):
    """Gathers the rows of one phase, and makes one record of their metrics.

    Numbers are in the report of the phase. Lists of numbers are averaged here, entry by
    entry, where every reply has a list of that name and all are of one length.

    Parameters
    ----------
    phase
        ``train`` or ``evaluate``.
    function
        What to make of the replies instead; None is the weighted mean. With a function the
        replies of a phase are held until all are there.
    weight_key
        Metric that holds the number of examples.
    """

    def __init__(
        self,
        phase: str,
        function: MetricsFn | None = None,
        weight_key: str = NUM_EXAMPLES,
    ) -> None:
        self._phase = phase
        self.function = function
        self.weight_key = weight_key
        self._warned: set[str] = set()
        self.begin(PhaseReport(phase))

    def begin(self, report: PhaseReport) -> None:
        """Begin a round: the replies are to be rows of this report."""
        self._report = report
        self._names: dict[str, str] = {}
        self._weights: list[float] = []
        self._lists: dict[str, list[list[float]]] = {}
        self._apart: dict[str, list[tuple[float, float]]] = {}
        self._contents: list[RecordDict] = []

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        """Return the reply without its records, which are not needed any more."""
        self._report.add(reply)
        self._weights.append(reply.num_examples)
        for name, number in reply.metrics.items():
            column = name.replace("-", "_")
            self._names.setdefault(column, name)
            if column in RESERVED:  # no column of a report, but a metric all the same
                self._apart.setdefault(name, []).append((number, reply.num_examples))
        for name, number in reply.left_out.items():
            # Where all say so it is another unit, such as per cent, and Flower's to show.
            if math.isfinite(number):
                self._apart.setdefault(name, []).append((number, reply.num_examples))
        for record in records_of(reply.content, MetricRecord).values():
            for name, value in record.items():
                if isinstance(value, list) and name not in reply.metrics:
                    self._lists.setdefault(name, []).append(list(map(_float, value)))
        if self.function is not None:
            self._contents.append(_as_counted(reply, self.weight_key))
        return (replace(reply, content={}),)

    def record(self) -> MetricRecord | None:
        """Return the record of the phase; None of no replies.

        A function that fails costs the run nothing but its metrics: the weighted means
        stand in for them, and the log says why.
        """
        if not self._report.rows:
            return None
        if self.function is not None:
            contents, self._contents = self._contents, []
            try:
                record = self.function(contents, self.weight_key)
                if record is None or isinstance(record, MetricRecord):
                    return record
                raise TypeError(f"it returned {type(record).__name__}, not a MetricRecord")
            except Exception as error:
                logger.warning(
                    "%s_metrics_aggr_fn failed: %s: the weighted means stand in for it",
                    self._phase,
                    described(error),
                )
        means = self._report.means()
        # As in Flower, the weight is no metric.
        del means["num_examples"]
        named = {self._names.get(name, name): value for name, value in means.items()}
        for name, held in self._apart.items():
            rows = [{"value": value, "weight": weight} for value, weight in held]
            if len(rows) == len(self._weights):  # a mean is of all, as of other metrics
                named[name] = mean_metrics(rows, "weight")["value"]
        lists = self._list_means() if self._lists else {}
        return MetricRecord({**named, **lists})

    def _list_means(self) -> dict[str, list[float]]:
        weights = np.array(self._weights)
        if weights.sum() == 0:
            weights = np.ones(len(weights))
        shares = weights / weights.sum()
        means: dict[str, list[float]] = {}
        for name, held in self._lists.items():
            lengths = sorted({len(values) for values in held})
            if len(held) == len(shares) and len(lengths) == 1:
                means[name] = _mean(np.array(held), shares)
            elif name not in self._warned and len(self._warned) < _MOST_WARNINGS:
                self._warned.add(name)
                logger.warning(
                    "metric %r has no mean: %d of %d replies hold it as a list, of %s "
                    "numbers",
                    one_line(name, 60),
                    len(held),
                    len(shares),
                    " or ".join(map(str, lengths[:4])),
                )
        return means


def _mean(rows: NDArray[np.float64], shares: NDArray[np.float64]) -> list[float]:
    # What is not finite in a list makes its entry of the mean so, and no more.
    with np.errstate(over="ignore", invalid="ignore"):
        mean: list[float] = (shares[:, None] * rows).sum(axis=0).tolist()
    return mean


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _as_counted(reply: ClientReply, weight_key: str) -> RecordDict:
    """Return a reply's content, with as many examples as count."""
    content = RecordDict(dict(reply.content))
    for name, record in records_of(content, MetricRecord).items():
        if record.get(weight_key, reply.num_examples) != reply.num_examples:
            changed = {**dict(record), weight_key: reply.num_examples}
            content[name] = MetricRecord(changed)
    return content
