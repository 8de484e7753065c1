"""What tuning tries next: random draws first, then Optuna's proposals.

The first 20 trials are drawn at random, because fewer tell a model of the scores nothing.
Later ones come from Optuna's tree-structured Parzen estimator, in batches of four. All are
a function of the earlier trials' scores, so that a tuning started again after a kill
proposes the same trials.
"""

import importlib.util
import logging
from collections.abc import Sequence
from typing import Any

from fedsuite.core.errors import RunError
from fedsuite.core.extras import how_to_install
from fedsuite.core.keys import Key, Value
from fedsuite.core.rng import stream_seed
from fedsuite.core.search import Around, Between, OneOf
from fedsuite.sweeps.trials import Result, Space

RANDOM = 20
"""Trials that are drawn at random."""

BATCH = 4
"""Trials that are proposed together, so that workers have something to do."""


def check_installed() -> None:
    """Raise RunError where Optuna, which more than 20 trials need, is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise RunError(
            f"more than {RANDOM} trials need Optuna: {how_to_install('optuna')}, or ask "
            f"for --trials {RANDOM} or fewer"
        )


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
    if start < RANDOM:
        return [
            (number, space.draw(number)) for number in range(start, min(trials, RANDOM))
        ]
    end = min(trials, start + BATCH)
    return list(zip(range(start, end), _by_optuna(space, known, end - start), strict=True))


def _by_optuna(space: Space, known: Sequence[Result], count: int) -> list[dict[str, Value]]:
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(logging.WARNING)
    seed = stream_seed(0, f"tuning/{space.contender.name}", len(known)) % 2**32
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    kinds = {key.name: _distribution(key, space) for key in space.keys}
    for result in known:
        values = {**space.defaults, **result.trial.drawn}
        study.add_trial(
            create_trial(
                params=values,
                distributions=kinds,
                value=None if result.error else result.score,
                state=TrialState.FAIL if result.error else TrialState.COMPLETE,
            )
        )
    return [_rounded(study.ask(kinds).params) for _ in range(count)]


def _distribution(key: Key, space: Space) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    default = space.defaults[key.name]
    assert isinstance(default, int | float)
    match key.search:
        case OneOf(values=values):
            return CategoricalDistribution(values)
        case Around(factor=factor):
            return FloatDistribution(default / factor, default * factor, log=True)
        case Between(low=low, high=high):
            return FloatDistribution(low, high, log=True)
    raise TypeError(f"key {key.name} has nothing to search")


def _rounded(values: dict[str, Any]) -> dict[str, Value]:
    return {
        name: float(f"{value:.3g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
