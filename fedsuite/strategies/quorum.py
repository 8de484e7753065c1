"""How many good replies make a round, and how long a run may go on without."""

import logging

from fedsuite.errors import RunError
from fedsuite.strategies.report import PhaseReport

logger = logging.getLogger(__name__)


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
        self.failed_rounds += 1
        reason = report.rejections[-1].reason if report.rejections else "no reply came"
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
        return False
