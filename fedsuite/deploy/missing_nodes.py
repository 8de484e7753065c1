"""The nodes that a run waits for, named while it waits."""

import time
from collections.abc import Callable, Sequence

from fedsuite.core.errors import RunError
from fedsuite.core.progress import round_in
from fedsuite.deploy.folders import SuperLinkFolder
from fedsuite.deploy.status import ONLINE, list_nodes

AGAIN_S = 30.0
"""Seconds between looks."""


class MissingNodes:
    """Names the nodes that a run waits for: at once, and now and then until it begins.

    Parameters
    ----------
    folder
        The SuperLink's folder.
    sites
        Names of the nodes that the run names; empty for all nodes.
    write
        Function that takes a line.
    """

    def __init__(
        self, folder: SuperLinkFolder, sites: Sequence[str], write: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._sites = sites
        self._write = write
        self._next = 0.0
        self._begun = False

    def hear(self, line: str) -> None:
        """Take a line of the run's log: after its first round the run tells of nodes."""
        self._begun = self._begun or round_in(line) is not None

    def look(self) -> None:
        """Name the nodes that are not connected, if it is time to."""
        if self._begun or time.monotonic() < self._next:
            return
        try:
            states = dict(list_nodes(self._folder))
        except RunError:
            return  # whoever follows the run says that the SuperLink does not answer
        finally:
            self._next = time.monotonic() + AGAIN_S
        needed = self._sites or list(states)
        away = {name: states.get(name, "not registered") for name in needed}
        named = [f"{name} ({state})" for name, state in away.items() if state != ONLINE]
        if named:
            self._write(
                f"not connected: {', '.join(named)}; {len(needed) - len(named)} of "
                f"{len(needed)} nodes are: the run waits for the others"
            )
