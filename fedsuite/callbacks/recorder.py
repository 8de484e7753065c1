"""Recording of rounds, clients and rejected replies in the run's folder."""

from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.exchange import Rejection


class Recorder(Callback):
    """Appends to ``rounds.jsonl``, ``clients.jsonl`` and ``events.jsonl`` each round.

    Parameters
    ----------
    folder
        The run's folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Write the round."""
        server_round = report.server_round
        self._folder.append(
            "clients",
            (
                {"round": server_round, "phase": phase.phase, **row}
                for phase in report.phases
                for row in phase.rows
            ),
        )
        events = [
            {
                "round": server_round,
                "kind": kind,
                "phase": phase.phase,
                "client": rejection.client_id,
                "reason": rejection.reason,
            }
            for phase in report.phases
            for kind, found in (
                ("rejected-reply", phase.rejections),
                ("bounded-reply", phase.bounded),
                ("suspected-reply", phase.suspected),
            )
            for rejection in sorted(found, key=_by_client)
        ]
        if events:
            self._folder.append("events", events)
        # Last, so that a round with this line has the others too.
        self._folder.append("rounds", [report.metrics])


def _by_client(rejection: Rejection) -> tuple[bool, int]:
    """Return the sort key of a rejection: by client, unknown clients last."""
    return rejection.client_id is None, rejection.client_id or 0
