"""Recording of rounds, clients and rejected replies in the run's folder."""

import logging
from collections.abc import Iterator

from typing_extensions import override

from fedsuite.core.metrics import is_accuracy, is_fraction
from fedsuite.results.layout import UNCOUNTED
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.report import Row

logger = logging.getLogger(__name__)


class Recorder(Callback):
    """Appends to ``rounds.jsonl``, ``clients.jsonl`` and ``events.jsonl`` each round.

    Parameters
    ----------
    folder
        The run's folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._recorded: set[tuple[object, str]] = set()

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        server_round = report.server_round
        self._folder.append(
            "clients",
            (
                {"round": server_round, "phase": phase.phase, **row}
                for phase in report.phases
                for row in phase.rows
            ),
        )
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
        events += self._uncounted(report)
        if events:
            self._folder.append("events", events)
        # Last, so that a round with this line has the others too.
        self._folder.append("rounds", [report.metrics])

    def _uncounted(self, report: RoundReport) -> list[dict[str, object]]:
        """Return events of accuracies that do not count; warn of each client's first."""
        events: list[dict[str, object]] = []
        new: list[dict[str, object]] = []
        for phase, row, name in _no_fractions(report):
            reason = f"{name} {float(row[name]):g}: a fraction from 0 to 1 is expected"
            event: dict[str, object] = {
                "round": report.server_round,
                "kind": UNCOUNTED,
                "phase": phase,
                "client": row["client"],
                "reason": reason,
            }
            events.append(event)
            if (row["client"], name) not in self._recorded:
                self._recorded.add((row["client"], name))
                new.append(event)
        if new:
            others = f" (and {len(new) - 1} such numbers more)" if len(new) > 1 else ""
            logger.warning(
                "round %d: client %s: %s, so it counts in no mean%s",
                report.server_round,
                new[0]["client"],
                new[0]["reason"],
                others,
            )
        return events


def _no_fractions(report: RoundReport) -> Iterator[tuple[str, Row, str]]:
    """Yield the accuracies that are no fractions: phase, client's row, and name."""
    for phase in report.phases:
        for row in phase.rows:
            for name in filter(is_accuracy, row):
                if not is_fraction(float(row[name])):
                    yield phase.phase, row, name


def _by_client(rejection: Rejection) -> tuple[bool, int]:
    """Return the sort key of a rejection: by client, unknown clients last."""
    return rejection.client_id is None, rejection.client_id or 0
