"""Progress of long work with the time left, at the bottom of a terminal.

::

    with shown(), Work("runs", 12) as runs:
        for experiment in experiments:
            run(experiment)
            runs.advance()

Each work under way has a line, which vanishes with it. What is printed meanwhile stands
above. Nothing is drawn outside of :func:`shown`, or where standard output is no terminal.

rich draws the lines, and measures the pace. No thread draws, because threads disturb forks:
a line is drawn when its work advances, a few times a second at most. The cursor stays
visible, so that a killed process leaves nothing to mend.
"""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fedsuite.core.logs import json_logs
from fedsuite.core.output import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Item = TypeVar("Item")

ROUNDS = "rounds"
"""What a run does."""

SECONDS_BETWEEN = 0.2
"""Least pause between two drawings."""

_ROUND = re.compile(r"round +(\d+) of (\d+)  ")
_DAY_S = 86400


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
        self._display: _Display | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._display = _current.get()
        if self._display is not None:
            self._task = self._display.begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._display is not None and self._task is not None:
            self._display.end(self._task)

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Count what was done, and say what happens now."""
        self.show(self.done + amount, note)

    def show(self, done: float, note: str = "") -> None:
        """Set how much is done, and what happens now."""
        self.done = done
        if self._display is not None and self._task is not None:
            self._display.change(self._task, completed=done, note=note)


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


def counted(
    items: Iterable[Item],
    total: int,
    what: str,
    size: Callable[[Item], int] = lambda item: 1,
) -> Iterator[Item]:
    """Return the items, and note how many have come at the innermost work under way.

    ``size`` says as how many of the ``total`` an item counts.
    """
    display = _current.get()
    if display is None:
        return iter(items)
    come = 0

    def count(item: Item) -> Item:
        nonlocal come
        come += size(item)
        display.note(f"{come} of {total} {what}")
        return item

    # A map, because a generator would keep the last item.
    return map(count, items)


class _Display:
    """The lines at the bottom of the terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._next = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def begin(self, work: Work) -> "TaskID":
        """Draw work that begins."""
        if self._progress is None:
            self._progress = _progress()
        task = self._progress.add_task(
            work.what, total=work.total, completed=int(work.done), note=""
        )
        self._draw()
        return task

    def end(self, task: "TaskID") -> None:
        """Take the line of ended work away; after the last, none is kept free."""
        if self._progress is not None:
            self._progress.remove_task(task)
            if self._progress.task_ids:
                self._draw()
            else:
                self.stop()

    def change(self, task: "TaskID", **changes: Any) -> None:
        """Change a line."""
        if self._progress is not None:
            self._progress.update(task, **changes)
            self.draw_if_due()

    def note(self, note: str) -> None:
        """Change the note of the innermost work."""
        if self._progress is not None:
            self.change(self._progress.task_ids[-1], note=note)

    def draw_if_due(self) -> None:
        """Draw the lines, unless they have been drawn just now."""
        if self.due:
            self._draw()

    def _draw(self) -> None:
        if self._progress is None or self._next == math.inf:
            return
        try:
            self._progress.start()
            self._progress.refresh()
        except (OSError, ValueError):
            # The terminal has gone: nothing is drawn any more.
            self._next = math.inf
            return
        self._next = time.monotonic() + SECONDS_BETWEEN

    def stop(self) -> None:
        """Take all lines away."""
        ended, self._progress = self._progress, None
        if ended is not None:
            with suppress(OSError, ValueError):
                ended.stop()


def _progress() -> "Progress":
    # The modules take a while, which a pipe need not wait for.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Steady(Console):
        """A console whose cursor is never hidden, and that breaks no line."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    class Done(TextColumn):
        """How much is done, or for how long something unknown has lasted."""

        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text(f"{task.elapsed or 0:.0f} s")
            return Text(f"{task.completed:,.0f} of {task.total:,.0f}")

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(30),
        Done(""),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", markup=False),
        console=Steady(soft_wrap=True),
        auto_refresh=False,
        # A round may last for minutes.
        speed_estimate_period=_DAY_S,
        transient=True,
        redirect_stderr=is_terminal(sys.stderr),
    )


_current: ContextVar[_Display | None] = ContextVar("fedsuite_progress", default=None)
