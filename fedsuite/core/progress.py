"""Progress of long work with the time left, at the bottom of a terminal.

::

    with shown(), Work("runs", 12) as runs:
        for experiment in experiments:
            run(experiment)
            runs.advance()

Each work under way has a line, which vanishes with it. What is printed meanwhile stands
above. Nothing is drawn outside of :func:`shown`, or where standard output is no terminal.

No thread draws, because threads disturb forks: a line is drawn when its work advances, a
few times a second at most. The cursor stays visible, so that a killed process leaves
nothing to mend.
"""

import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fedsuite.core.logs import json_logs
from fedsuite.core.output import is_terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

Item = TypeVar("Item")

ROUNDS = "rounds"
"""What a run does."""

SECONDS_BETWEEN = 0.2
"""Least pause between two drawings."""

_ROUND = re.compile(r"round +(\d+) of (\d+)  ")

_BAR = 8, 30
"""Least and most characters of a bar."""

_NOTE = 12
"""Least characters of a note."""


class Work:
    """Long work under way, a context manager that shows its progress.

    Parameters
    ----------
    what
        What is done, in the plural where it is counted: ``rounds``.
    total
        How much there is to do; None for a wait of unknown length.
    done
        How much was done before, which says nothing about the pace.
    """

    def __init__(self, what: str, total: float | None = None, done: float = 0) -> None:
        self.what, self.total, self.done = what, total, done
        self.note = ""
        """What happens now, in a few words."""
        self.partial = 0.0
        """How much is done of what is under way."""
        self._began = self._changed = time.monotonic()
        # Moments from which the pace may be measured, and how much was done then.
        self._origins = [(self._began, done)]
        self._display: _Display | None = None

    def __enter__(self) -> Self:
        self._display = _current.get()
        if self._display is not None:
            self._display.works.append(self)
            self._display.draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.works.remove(self)
            self._display.draw()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Count what was done, and say what happens now."""
        self.show(self.done + amount, 0.0, note)

    def show(self, done: float, partial: float = 0.0, note: str = "") -> None:
        """Set how much is done, how much of what is under way, and what happens now."""
        if (done, partial) != (self.done, self.partial):
            self._changed = time.monotonic()
        self.done, self.partial, self.note = done, partial, note
        if self._display is not None:
            self._display.draw_if_due()

    def leave_out(self, amount: float) -> None:
        """Count what need not be done, which says nothing about the pace."""
        self.done += amount
        self._origins = [(when, before + amount) for when, before in self._origins]

    def settle(self) -> None:
        """Measure the pace from now on, because what was done until now was slower."""
        self._origins.append((time.monotonic(), self.done))

    @property
    def due(self) -> bool:
        """Whether it is time to draw the progress again."""
        return self._display is not None and self._display.due

    def seconds_left(self) -> float | None:
        """Return the time left at the pace so far; None where there is no pace yet."""
        done = self.done + self.partial
        origins = [origin for origin in self._origins if origin[1] < done]
        if self.total is None or not origins or done > self.total:
            return None
        began, before = origins[-1]
        pace = (self._changed - began) / (done - before)
        return max(pace * (self.total - done) - (time.monotonic() - self._changed), 0.0)

    def seconds(self) -> float:
        """Return for how long the work has been under way."""
        return time.monotonic() - self._began


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def round_words(server_round: int, num_rounds: int) -> str:
    """Return the beginning of the line on a round: ``round  3 of 20``."""
    return f"round {server_round:>{len(str(num_rounds))}} of {num_rounds}"


def round_in(line: str) -> tuple[int, int] | None:
    """Return the round, and the number of rounds, that a line begins with."""
    match = _ROUND.match(line)
    return (int(match[1]), int(match[2])) if match else None


@contextmanager
def shown() -> Iterator[None]:
    """Draw the progress of work inside the block, if standard output is a terminal."""
    capable = is_terminal(sys.stdout) and os.environ.get("TERM", "") not in ("", "dumb")
    # A notebook runs `!command` on a terminal, and shows all that was drawn, line by line.
    capable = capable and "JPY_PARENT_PID" not in os.environ
    if _current.get() is not None or not capable or json_logs():
        yield
        return
    display = _Display()
    token = _current.set(display)
    try:
        yield
    finally:
        _current.reset(token)
        display.stop()


def redraw() -> None:
    """Draw the work under way again, if it is time: call it while you wait."""
    display = _current.get()
    if display is not None:
        display.draw_if_due()


def counted(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Return the items, and note how many have come at the innermost work under way."""
    display = _current.get()
    if display is None or not display.works:
        return iter(items)
    work, come = display.works[-1], 0

    def count(item: Item) -> Item:
        nonlocal come
        come += 1
        work.note = f"{come} of {total} {what}"
        display.draw_if_due()
        return item

    # A map, because a generator would keep the last item.
    return map(count, items)


class _Display:
    """The lines at the bottom of the terminal."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self._live: Live | None = None
        self._next = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def draw_if_due(self) -> None:
        if self.works and self.due:
            self.draw()

    def draw(self) -> None:
        """Draw the work under way; without any the lines vanish."""
        if not self.works or self._next == math.inf:
            self.stop()
            return
        try:
            if self._live is None:
                self._live = _live(lambda: _Lines(self.works))
                self._live.start()
            self._live.refresh()
        except (OSError, ValueError):
            # The terminal has gone: nothing is drawn any more.
            self._next = math.inf
            self.stop()
            return
        self._next = time.monotonic() + SECONDS_BETWEEN

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError, ValueError):
                live.stop()


class _Lines:
    """The lines of works, as rich draws them."""

    def __init__(self, works: list[Work]) -> None:
        self._works = works

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "RenderResult":
        from rich.progress_bar import ProgressBar
        from rich.segment import Segment
        from rich.text import Text

        for work in self._works:
            state = _state(work)
            room = options.max_width - len(work.what) - len(state) - 4
            yield Segment(f"{work.what}  ")
            if work.total is not None and room >= _BAR[0]:
                width = min(room, _BAR[1])
                room -= width + 2
                yield ProgressBar(work.total, work.done + work.partial, width=width)
                yield Segment("  ")
            # Where there is little room, the bar is more to the point than the note.
            note = Text(f"  {work.note}" if work.note and room > _NOTE else "")
            note.truncate(max(room, 0), overflow="ellipsis")
            yield Segment(f"{state}{note.plain}")
            yield Segment.line()


def _state(work: Work) -> str:
    """Return how far the work is, and how long it lasts."""
    if work.total is None:
        return duration(work.seconds())
    seconds = work.seconds_left()
    left = "" if seconds is None else f"  about {duration(seconds)} left"
    return f"{work.done:,.0f} of {work.total:,.0f}{left}"


def _live(lines: Any) -> "Live":
    from rich.live import Live

    return Live(
        get_renderable=lines,
        console=_console(),
        auto_refresh=False,
        transient=True,
        redirect_stderr=is_terminal(sys.stderr),
    )


def _console() -> "Console":
    from rich.console import Console

    class Steady(Console):
        """A console whose cursor is never hidden, and that breaks no line."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Steady(soft_wrap=True)


_current: ContextVar[_Display | None] = ContextVar("fedsuite_progress", default=None)
