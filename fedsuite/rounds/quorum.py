"""How many good replies make a round, and how long a run may go on without."""

from fedsuite.core.errors import RunError
from fedsuite.core.logs import ServerLogger
from fedsuite.rounds.report import PhaseReport

logger = ServerLogger(__name__)


class QuorumMissed(Exception):
    """Too few good replies to an exchange inside a round: number of them, and why."""

    def __init__(self, good: int, reason: str) -> None:
        super().__init__(good, reason)
        self.good = good
        self.reason = reason


class Quorum:
    """Judges rounds by their number of good replies.

    Parameters
    ----------
    needed
        Least number of good replies.
    max_failed_rounds
        Rounds in a row that may miss it.
    """

    def __init__(self, needed: int, max_failed_rounds: int) -> None:
        self.needed = needed
        self.max_failed_rounds = max_failed_rounds
        self.failed_rounds = 0

    def met(self, server_round: int, report: PhaseReport) -> bool:
        """Return whether a round counts; if not, the model stays as it was.

        Raises
        ------
        RunError
            If too many rounds in a row missed the quorum: nobody is there any more, or
            all clients fail.
        """
        good = len(report.rows)
        if good >= self.needed:
            self.failed_rounds = 0
            return True
        reason = report.rejections[-1].reason if report.rejections else "no reply came"
        self.miss(server_round, good, reason)
        return False

    def check(self, good: int, report: PhaseReport) -> None:
        """Judge an exchange that a method makes inside a round.

        Raises
        ------
        QuorumMissed
            If it had too few good replies: the round cannot go on.
        """
        if good < self.needed:
            reason = report.rejections[-1].reason if report.rejections else "no reply came"
            raise QuorumMissed(good, reason)

    def miss(self, server_round: int, good: int, reason: str) -> None:
        """Count a round that missed the quorum; see :meth:`met`."""
        self.failed_rounds += 1
        logger.warning(
            "round %d: %d good replies, quorum %d: the model stays as it was",
            server_round,
            good,
            self.needed,
        )
        if self.failed_rounds >= self.max_failed_rounds:
            raise RunError(
                f"round {server_round}: {self.failed_rounds} rounds in a row had fewer "
                f"good replies than the quorum of {self.needed}; last reason: {reason}"
            )
