"""Recording of rounds, clients and rejected replies in the run's folder."""

from collections.abc import Iterator

from typing_extensions import override

from fedsuite.results.layout import LEFT_OUT
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.remarks import why_left_out


class Recorder(Callback):
    """Appends to ``rounds.jsonl``, ``clients.jsonl`` and ``events.jsonl`` each round.

    Parameters
    ----------
    folder
        The run's folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

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
        events += _left_out(report)
        if events:
            self._folder.append("events", events)
        # Last, so that a round with this line has the others too.
        self._folder.append("rounds", [report.metrics])


def _left_out(report: RoundReport) -> Iterator[dict[str, object]]:
    """Yield an event for each client of a phase some of whose metrics do not count."""
    for phase in report.phases:
        reasons: dict[int, list[str]] = {}
        for metric, clients in phase.left_out.items():
            for client_id, number in clients.items():
                reasons.setdefault(client_id, []).append(why_left_out(metric, number))
        for client_id, of_client in sorted(reasons.items()):
            more = f" (and {len(of_client) - 1} more)" if len(of_client) > 1 else ""
            yield {
                "round": report.server_round,
                "kind": LEFT_OUT,
                "phase": phase.phase,
                "client": client_id,
                "reason": f"{of_client[0]}{more}",
            }


def _by_client(rejection: Rejection) -> tuple[bool, int]:
    """Return the sort key of a rejection: by client, unknown clients last."""
    return rejection.client_id is None, rejection.client_id or 0
