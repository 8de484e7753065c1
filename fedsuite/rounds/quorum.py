"""Quorum: the number of good replies that make a round."""

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from fedsuite.core.errors import RunError
from fedsuite.core.logs import ServerLogger
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.stage import Stage, State

logger = ServerLogger(__name__)


class QuorumMissed(Exception):
    """An exchange with too few good replies.

    Parameters
    ----------
    kind
        What there are too few replies for.
    good
        Their number.
    reason
        Why.
    least
        What there are fewer replies than; empty where that is the quorum.
    """

    def __init__(self, kind: Kind, good: int, reason: str, least: str = "") -> None:
        super().__init__(good, reason)
        self.kind = kind
        self.good = good
        self.reason = reason
        self.least = least


class Quorum(Stage):
    """Judges rounds by their number of good replies.

    Parameters
    ----------
    needed
        Least number of good replies.
    max_failed_rounds
        Number of rounds in a row below the quorum that ends the run.
    """

    name: ClassVar[str] = "quorum"

    def __init__(self, needed: int = 1, max_failed_rounds: int = 1) -> None:
        self.needed = needed
        self.max_failed_rounds = max_failed_rounds
        self.failed_rounds = 0

    def check(self, good: int, report: PhaseReport) -> None:
        """Judge an exchange by its number of good replies.

        Raises
        ------
        QuorumMissed
            If there were too few: the round cannot go on.
        """
        if good < self.needed:
            reason = report.rejections[-1].reason if report.rejections else "no reply came"
            raise QuorumMissed(Kind.QUORUM, good, reason)

    def heard(self, server_round: int, report: PhaseReport) -> None:
        """Judge a round under noise, whose model moves whoever answered.

        Raises
        ------
        RunError
            If nobody who was asked gave a good reply, too many rounds in a row.
        """
        if report.rows or not report.num_asked:
            self.failed_rounds = 0
            return
        self.failed_rounds += 1
        reason = report.rejections[-1].reason if report.rejections else "no reply came"
        logger.warning("round %d: no good reply, only noise was added", server_round)
        if self.failed_rounds >= self.max_failed_rounds:
            raise RunError(
                f"round {server_round}: {self.failed_rounds} rounds in a row had no good "
                f"reply; last reason: {reason}"
            )

    def miss(self, server_round: int, missed: QuorumMissed, last_refused: str = "") -> None:
        """Count a round that missed the quorum.

        Parameters
        ----------
        server_round
            Its number.
        missed
            What there were too few replies for.
        last_refused
            Why the round's last refused reply was refused; empty where none was.

        Raises
        ------
        RunError
            If too many rounds in a row missed the quorum: nobody is there any more, or all
            clients fail.
        """
        self.failed_rounds += 1
        needed = missed.reason if missed.least else f"quorum {self.needed}"
        logger.warning(
            "round %d: %d good replies, %s: the model stays as it was",
            server_round,
            missed.good,
            needed,
        )
        if self.failed_rounds >= self.max_failed_rounds:
            least = missed.least or f"the quorum of {self.needed}"
            # A number of replies does not say why there were no more.
            unsaid = last_refused and last_refused not in missed.reason
            refused = f"; last refused reply: {last_refused}" if unsaid else ""
            raise RunError(
                f"round {server_round}: {self.failed_rounds} rounds in a row had fewer "
                f"good replies than {least}; last reason: {missed.reason}{refused}"
            )

    @override
    def state(self) -> State:
        return {"failed-rounds": self.failed_rounds}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self.failed_rounds = int(state["failed-rounds"])
