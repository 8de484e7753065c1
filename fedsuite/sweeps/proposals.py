"""What tuning tries next, the same for all methods of a problem.

1. The defaults, and five learning rates of one ladder.
2. While the best rate is an end of what was tried, the next rung beyond it.
3. Rates around the best rung, with the method's own keys drawn.

All are a function of the earlier trials' scores, so that a tuning started again after a
kill proposes the same trials. Draws come from streams keyed by problem, key and trial: two
methods with equal scores try equal values.
"""

from collections.abc import Mapping, Sequence

from fedsuite.core.keys import Value
from fedsuite.core.search import HalfDecades
from fedsuite.sweeps.trials import LEARNING_RATE, Result, Space, best_of

RUNGS = (0, 1, -1, 2, -2)
"""Rungs of the ladder that every method tries, from the optimiser's usual rate."""

WIDENED = 4
"""Most rungs that are tried beyond those."""

USUAL: Mapping[str, float] = {"sgd": 0.1, "adam": 0.001}

_LADDER = HalfDecades()


def propose(
    space: Space, known: Sequence[Result], trials: int
) -> list[tuple[int, dict[str, Value]]]:
    """Return numbers and tuned values of the next trials.

    Parameters
    ----------
    space
        The tuned keys.
    known
        Results of all earlier trials.
    trials
        Number of trials in the end.
    """
    start = len(known)
    drawn: list[dict[str, Value]]
    if start == 0:
        drawn = [{}]
        drawn += [{LEARNING_RATE: rate} for rate in first_rates(space)]
    elif (beyond := rate_beyond(space, known)) is not None:
        drawn = [{LEARNING_RATE: beyond}]
    else:
        best = best_of(_on_the_ladder(known))
        rate = _rate(space, best)
        drawn = [space.draw(number, rate) for number in range(start, trials)]
    return list(enumerate(drawn, start))[: trials - start]


def first_rates(space: Space) -> list[float]:
    """Return the rates of the ladder beside the default; none where the rate is fixed."""
    if LEARNING_RATE not in space.defaults:
        return []
    middle = _LADDER.nearest(USUAL[space.optimizer])
    rates = [_LADDER.rung(middle + rung) for rung in RUNGS]
    return [rate for rate in rates if rate != space.defaults[LEARNING_RATE]]


def rate_beyond(space: Space, known: Sequence[Result]) -> float | None:
    """Return the rung beyond the best rate, where that is an end of what was tried."""
    tried = _on_the_ladder(known)
    left = len(first_rates(space)) + 1 + WIDENED - len(tried)
    if LEARNING_RATE not in space.defaults or not left or len(tried) < len(known):
        return None
    best = best_of(tried)
    if best.error:
        return None
    rates = sorted({_rate(space, result) for result in tried})
    rung = _LADDER.nearest(_rate(space, best))
    for end, step in ((rates[0], -1), (rates[-1], 1)):
        if _rate(space, best) == end:
            return _LADDER.rung(rung + step)
    return None


def _on_the_ladder(known: Sequence[Result]) -> list[Result]:
    """Return the results of trials that have no drawn value but a rate of the ladder."""
    rungs = []
    for result in known:
        drawn = result.trial.drawn
        rate = drawn.get(LEARNING_RATE)
        plain = isinstance(rate, float) and rate == _LADDER.rung(_LADDER.nearest(rate))
        if not drawn or (len(drawn) == 1 and plain):
            rungs.append(result)
    return rungs


def _rate(space: Space, result: Result) -> float:
    rate = result.trial.drawn.get(LEARNING_RATE, space.defaults.get(LEARNING_RATE, 1.0))
    assert isinstance(rate, int | float)
    return float(rate)
