"""Recording of rounds, clients and rejected replies in the run's folder."""

import logging
import math
from collections.abc import Iterator

from typing_extensions import override

from fedsuite.results.layout import CLIENTS, EVENTS, LEFT_OUT, ROUNDS, read_table
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.remarks import why_left_out
from fedsuite.rounds.report import Row
from fedsuite.rounds.validation import MOST_METRICS

logger = logging.getLogger(__name__)

MOST_COLUMNS = 2 * MOST_METRICS
"""Different names of clients' metrics in a run's tables; the first ones are taken."""


class Recorder(Callback):
    """Appends to ``rounds.jsonl``, ``clients.jsonl`` and ``events.jsonl`` each round.

    Parameters
    ----------
    folder
        The run's folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._columns: set[str] = set()
        self._full = False

    @override
    def on_start(self, state: RunState) -> None:
        if state.server_round:
            # A run that goes on has the columns that it had.
            for row in read_table(self._folder.path, CLIENTS):
                self._columns.update(row)

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        self.record(report)

    def record(self, report: RoundReport) -> None:
        """Append what a round reports."""
        server_round = report.server_round
        rows = [
            self._bounded({"round": server_round, "phase": phase.phase, **row})
            for phase in report.phases
            for row in phase.rows
        ]
        self._folder.append(CLIENTS, rows)
        events: list[dict[str, object]] = [
            {
                "round": server_round,
                "kind": kind,
                "cause": rejection.kind,
                "phase": phase.phase,
                "client": rejection.client_id,
                "reason": rejection.reason,
            }
            for phase in report.phases
            for kind, rejections in (
                ("rejected-reply", phase.rejections),
                ("bounded-reply", phase.bounded),
                ("suspected-reply", phase.suspected),
            )
            for rejection in sorted(rejections, key=_by_client)
        ]
        events += _left_out(report)
        if events:
            self._folder.append(EVENTS, events)
        # Last, so that a round with this line has the others too.
        self._folder.append(ROUNDS, [self._means(report)])

    def _bounded(self, row: Row) -> Row:
        """Return a client's row without names beyond those that the tables may have."""
        new = [name for name in row if name not in self._columns]
        if len(self._columns) + len(new) <= MOST_COLUMNS:
            self._columns.update(new)
            return row
        if not self._full:
            self._full = True
            logger.warning(
                "round %s: client %s: a metric of a new name, and the run has %d names: "
                "new names are left out of its tables from here on",
                row["round"],
                row["client"],
                len(self._columns),
            )
        return {name: value for name, value in row.items() if name in self._columns}

    def _means(self, report: RoundReport) -> dict[str, float | int]:
        """Return the row of a round, without means of what clients' rows do not have."""
        if not self._full:
            return report.metrics
        left_out = {
            f"{phase.phase}_{name}"
            for phase in report.phases
            for row in phase.rows
            for name in row.keys() - self._columns
        }
        return {k: value for k, value in report.metrics.items() if k not in left_out}


def _left_out(report: RoundReport) -> Iterator[dict[str, object]]:
    """Yield an event for each client of a phase some of whose metrics do not count."""
    for phase in report.phases:
        by_client: dict[int, dict[str, float]] = {}
        for metric, clients in phase.left_out.items():
            for client_id, number in clients.items():
                by_client.setdefault(client_id, {})[metric] = number
        for client_id, of_client in sorted(by_client.items()):
            more = f" (and {len(of_client) - 1} more)" if len(of_client) > 1 else ""
            impossible = any(map(math.isfinite, of_client.values()))
            metric, number = next(iter(of_client.items()))
            yield {
                "round": report.server_round,
                "kind": LEFT_OUT,
                "phase": phase.phase,
                "client": client_id,
                "cause": Kind.WRONG_METRICS if impossible else Kind.NOT_FINITE,
                "reason": f"{why_left_out(metric, number)}{more}",
            }


def _by_client(rejection: Rejection) -> tuple[bool, int]:
    """Return the sort key of a rejection: by client, unknown clients last."""
    return rejection.client_id is None, rejection.client_id or 0
