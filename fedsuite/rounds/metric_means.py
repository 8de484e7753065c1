"""The rows and the metrics of a phase: weighted means, or what a function makes of them.

Flower's strategies take such functions as ``train_metrics_aggr_fn`` and
``evaluate_metrics_aggr_fn``; here they mean the same.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from flwr.app import MetricRecord, RecordDict
from numpy.typing import NDArray
from typing_extensions import override

from fedsuite.core.errors import described, one_line
from fedsuite.core.logs import ServerLogger
from fedsuite.messages.records import NUM_EXAMPLES, records_of
from fedsuite.rounds.aggregation import mean_metrics
from fedsuite.rounds.report import RESERVED, PhaseReport
from fedsuite.rounds.stage import Stage
from fedsuite.rounds.validation import ClientReply

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
