"""Waiting for nodes with a deadline, which says whom it waits for."""

import time

from fedsuite.core.logs import ServerLogger, in_own_run, write_line

AGAIN_S = 30.0
"""Seconds after which a wait says again whom it waits for."""

_POLL_SECONDS = 0.2

logger = ServerLogger(__name__)


class Waiting:
    """A wait for nodes: what is lacking is told at once, when it changes, and now and then.

    Parameters
    ----------
    timeout
        Seconds to wait.
    """

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._told = ""
        self._again = 0.0

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._deadline

    def pause(self, connected: int, needed: int, lacking: str = "") -> None:
        """Wait a moment.

        Parameters
        ----------
        connected, needed
            How many nodes are there, and how many are to be.
        lacking
            Who is lacking, where names are known.
        """
        words = (
            f"Waiting for nodes to connect: {connected} connected (minimum required: "
            f"{needed})."
        )
        words += f" Not yet: {lacking}." if lacking else ""
        now = time.monotonic()
        if words != self._told or now >= self._again:
            self._told, self._again = words, now + AGAIN_S
            if in_own_run():
                write_line(words)
            else:
                logger.tell("%s", words)
        time.sleep(_POLL_SECONDS)
