"""Quorum: the number of good replies that make a round."""

from fedsuite.core.errors import RunError
from fedsuite.core.logs import ServerLogger
from fedsuite.rounds.report import PhaseReport

logger = ServerLogger(__name__)


class QuorumMissed(Exception):
    """An exchange with too few good replies.

    Parameters
    ----------
    good
        Their number.
    reason
        Why.
    needed
        How many an average needed; 0 where the quorum itself is missed.
    """

    def __init__(self, good: int, reason: str, needed: int = 0) -> None:
        super().__init__(good, reason)
        self.good = good
        self.reason = reason
        self.needed = needed


class Quorum:
    """Judges rounds by their number of good replies.

    Parameters
    ----------
    needed
        Least number of good replies.
    max_failed_rounds
        Number of rounds in a row below the quorum that ends the run.
    """

    def __init__(self, needed: int, max_failed_rounds: int) -> None:
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
            raise QuorumMissed(good, reason)

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

    def miss(self, server_round: int, missed: QuorumMissed) -> None:
        """Count a round that missed the quorum; the model stays as it was.

        Raises
        ------
        RunError
            If too many rounds in a row missed the quorum: nobody is there any more, or all
            clients fail.
        """
        self.failed_rounds += 1
        needed = f"quorum {self.needed}"
        if missed.needed:
            needed = missed.reason
        logger.warning(
            "round %d: %d good replies, %s: the model stays as it was",
            server_round,
            missed.good,
            needed,
        )
        if self.failed_rounds >= self.max_failed_rounds:
            least = f"the quorum of {self.needed}"
            if missed.needed:
                least = f"the {missed.needed} that the aggregator needs"
            raise RunError(
                f"round {server_round}: {self.failed_rounds} rounds in a row had fewer "
                f"good replies than {least}; last reason: {missed.reason}"
            )
