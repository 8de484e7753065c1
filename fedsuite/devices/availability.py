"""When a device is there: always, at night, now and then, or as a table says.

Each kind answers one question: in which span of virtual seconds is the device there, that
goes on now or comes next. A device's draws come from streams of its own, so that its spans
are the same whoever asks, and in whatever order.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from typing_extensions import override

from fedsuite.core.rng import numpy_stream

HOUR, DAY = 3600.0, 86400.0

Span = tuple[float, float]
"""First second, and the second after the last; infinity for ever."""

_MOST_DAYS = 3650
"""Days without a span in a row after which a device does not come back."""


class Availability(Protocol):
    """When a device is there."""

    def span(self, second: float) -> Span | None:
        """Return the span that holds a second, else the next one; None if none comes."""


class Always(Availability):
    """A device that never leaves."""

    @override
    def span(self, second: float) -> Span | None:
        return (-math.inf, math.inf)


@dataclass(frozen=True)
class Daily(Availability):
    """A device that is there once a day, such as a phone that is charged at night.

    Parameters
    ----------
    first
        Second of the day at which its span begins; day 0 begins at second 0.
    length
        Seconds of the span, below a day.
    chance
        Probability of a day to have one, above 0.
    seed, client_id
        Name of the stream of the days' draws.
    """

    first: float
    length: float
    chance: float
    seed: int
    client_id: int

    @override
    def span(self, second: float) -> Span | None:
        day = math.floor((second - self.first) / DAY)
        for later in range(day, day + _MOST_DAYS):
            begins = later * DAY + self.first
            if begins + self.length > second and self._comes(later):
                return begins, begins + self.length
        return None

    def _comes(self, day: int) -> bool:
        stream = numpy_stream(self.seed, "device-day", day, self.client_id)
        return bool(stream.random() < self.chance)


@dataclass
class Markov(Availability):
    """A device that comes and goes: a Markov chain of two states in continuous time.

    Parameters
    ----------
    present, away
        Mean seconds of a stay, and of an absence.
    seed, client_id
        Name of the stream of its draws.
    """

    present: float
    away: float
    seed: int
    client_id: int
    _changes: list[float] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._stream = numpy_stream(self.seed, "device-states", 0, self.client_id)
        share = self.present / (self.present + self.away)
        self._begins_there = bool(self._stream.random() < share)

    @override
    def span(self, second: float) -> Span | None:
        place = self._place(second)
        if self._is_there(place):
            return self._between(place)
        return self._between(place + 1)

    def _is_there(self, place: int) -> bool:
        return self._begins_there == (place % 2 == 0)

    def _place(self, second: float) -> int:
        """Return how many changes were before a second."""
        while not self._changes or self._changes[-1] <= second:
            self._draw()
        return bisect_right(self._changes, second)

    def _between(self, place: int) -> Span:
        while len(self._changes) <= place:
            self._draw()
        return self._changes[place - 1] if place else -math.inf, self._changes[place]

    def _draw(self) -> None:
        mean = self.present if self._is_there(len(self._changes)) else self.away
        last = self._changes[-1] if self._changes else 0.0
        self._changes.append(last + float(self._stream.exponential(mean)))


class Table(Availability):
    """A device that is there as a table says.

    Parameters
    ----------
    spans
        Its spans, in any order; those that touch are one.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        joined: list[Span] = []
        for begins, ends in sorted(spans):
            if joined and begins <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(ends, joined[-1][1])
            else:
                joined.append((begins, ends))
        self._spans = joined
        self._ends = np.array([ends for _, ends in joined])

    @override
    def span(self, second: float) -> Span | None:
        place = int(np.searchsorted(self._ends, second, side="right"))
        return self._spans[place] if place < len(self._spans) else None
