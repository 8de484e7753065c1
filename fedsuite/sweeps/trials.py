"""Trials of tuning: the values that a method is tried with, and the score of each trial.

Trial 0 has the method's defaults; :mod:`fedsuite.sweeps.proposals` says what the others
have. A trial is one run or several of different seeds, and its score their mean. It is read
from the clients' validation rows alone.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, Value
from fedsuite.core.metrics import fairness_report
from fedsuite.core.registry import METHODS
from fedsuite.core.rng import numpy_stream
from fedsuite.core.tasks import ACCURACY, SCORES, Score
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import local_keys, shared_keys
from fedsuite.experiment.rules import main_score
from fedsuite.results.layout import MANIFEST
from fedsuite.results.reader import Run, Scores, load_run
from fedsuite.sweeps.points import OWN_KEYS, Point
from fedsuite.sweeps.sweep import is_finished

Objective = str
"""What trials are chosen by: a measure over clients, of the main score of the experiment's
task, or of the score that stands before it: ``worst-10``, ``auroc-mean``."""

LEARNING_RATE = "learning-rate"
"""Key that is tuned for every method."""

LAST = 3
"""Number of last evaluations that a score averages."""

VALIDATION = "client-validation-fraction"
DEFAULT_FRACTION = 0.1

_MEASURES: Mapping[str, tuple[str, str]] = {
    "mean": ("mean", "mean"),
    "worst-10": ("worst10", "worst_10"),
    "variance": ("variance", "variance"),
}
"""End of the column of ``rounds.jsonl``, and the name in a fairness report."""

MEAN_ACCURACY = f"{ACCURACY.name}-mean"


def objective_of(name: str) -> Objective:
    """Return the objective of that name."""
    measure_and_score(name)
    return name


def measure_and_score(objective: Objective) -> tuple[str, Score | None]:
    """Return an objective's measure and its score, None for the task's main score.

    Raises
    ------
    ConfigError
        If it has another form.
    """
    for measure in _MEASURES:
        score = objective.removesuffix(measure).removesuffix("-")
        if objective in (measure, f"{score}-{measure}") and (not score or score in SCORES):
            return measure, SCORES.get(score)
    raise ConfigError(
        f"objective {objective!r}: expected one of {', '.join(_MEASURES)}, of the task's "
        "main score, or of another score, as in auroc-mean"
    )


def named_objective(objective: Objective, values: Mapping[str, Value]) -> Objective:
    """Return an objective with its score, which may be the main one of an experiment."""
    measure, score = measure_and_score(objective)
    return f"{(score or main_score(values)).name}-{measure}"


def _judged_by(objective: Objective, run: Run) -> Score:
    return measure_and_score(objective)[1] or main_score(run.experiment)


FAILED = -math.inf
"""Score of a trial whose run failed."""


@dataclass(frozen=True)
class Contender:
    """A method to be tuned, with what is fixed for it.

    Parameters
    ----------
    name
        Name in tables and folders.
    fixed
        Values that all its trials have; ``method`` among them.
    tuned
        Keys to tune beside the learning rate and the method's own. Trial 0 has such a key's
        fixed value, or its default; the other trials have drawn ones.
    """

    name: str
    fixed: Mapping[str, Value]
    tuned: tuple[str, ...] = ()

    @classmethod
    def of_method(cls, method: str, tuned: Sequence[str] = ()) -> "Contender":
        """Return a method without further fixed values."""
        if method not in METHODS:
            raise ConfigError(
                f"method {method!r}: `fedsuite methods` lists those there are"
            )
        return cls(method, {"method": method}, tuple(tuned))


@dataclass(frozen=True)
class Trial:
    """One trial of a contender.

    Parameters
    ----------
    contender
        The contender.
    number
        From 0, which has the defaults.
    drawn
        Tuned values.
    points
        Its runs, one per seed.
    """

    contender: Contender
    number: int
    drawn: Mapping[str, Value]
    points: tuple[Point, ...]

    @property
    def settings(self) -> dict[str, Value]:
        """The values that all its runs name beside the problem."""
        return dict(self.points[0].settings)


@dataclass(frozen=True)
class Result:
    """The outcome of a trial.

    Parameters
    ----------
    trial
        The trial.
    score
        Mean over runs, in the unit that is shown; the negative of variances, and of scores
        of which less is better; :data:`FAILED` where a run failed. A client without a score
        counts as the worst that there is.
    accuracy
        Mean validation accuracy over clients, per cent; NaN where a run failed.
    learnt
        Whether the accuracy of each run is above that of guessing the largest class.
    seconds
        Processor seconds of the runs.
    error
        Why a run failed; empty where none did.
    left_out
        How many clients have a score, ``5 of 8 clients``; empty where all have.
    """

    trial: Trial
    score: float
    accuracy: float = math.nan
    learnt: bool = False
    seconds: float = 0.0
    error: str = field(default="", compare=False)
    left_out: str = ""


@dataclass(frozen=True)
class Space:
    """The tuned keys of a contender on a problem.

    Parameters
    ----------
    contender
        The contender.
    base
        The problem: values that all contenders share.
    constants
        Values that a trial names beside the drawn ones: what is fixed, and the method's own
        defaults, which would give way to a drawn key of their group.
    keys
        The tuned keys.
    defaults
        Their defaults here.
    note
        What the method's own defaults change, in one line.
    optimizer
        The local optimiser of its trials.
    """

    contender: Contender
    base: Mapping[str, Value]
    constants: Mapping[str, Value]
    keys: tuple[Key, ...]
    defaults: Mapping[str, Value]
    note: str
    optimizer: str

    @classmethod
    def of(cls, contender: Contender, base: Mapping[str, Value]) -> "Space":
        """Return the space of a contender on a problem.

        Raises
        ------
        ConfigError
            If the contender cannot be run on the problem.
        """
        fixed = dict(contender.fixed)
        first = _checked(contender, {**base, **fixed}, tuple(fixed))
        _refuse_noise(contender, first)
        strategy = first.strategy
        own = {name: first[name] for name in strategy.DEFAULTS if name in first.values}
        own = {name: value for name, value in own.items() if name not in base}
        candidates = (*shared_keys().values(), *strategy.method_keys())
        can = {key.name: key for key in candidates if key.search}
        always = {LEARNING_RATE, *(key.name for key in strategy.method_keys())} - set(fixed)
        for name in contender.tuned:
            if name not in can:
                known = ", ".join(sorted(can))
                raise ConfigError(
                    f"{contender.name}: key {name!r} cannot be tuned: expected {known}"
                )
        keys = {name: can[name] for name in can if name in always | set(contender.tuned)}
        return cls(
            contender,
            base,
            {**own, **fixed},
            tuple(keys.values()),
            {name: first[name] for name in keys},
            first.note,
            str(first["optimizer"]),
        )

    def values(self, number: int, drawn: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values that a trial sets beside those of the problem."""
        return {**self.constants, **drawn} if number else dict(self.contender.fixed)

    def draw(self, number: int, rate: float) -> dict[str, Value]:
        """Return the tuned values of a trial, its learning rate drawn around ``rate``."""
        problem = problem_name(self.base)
        drawn: dict[str, Value] = {}
        for key in self.keys:
            assert key.search is not None
            stream = numpy_stream(0, f"tuning/{problem}/{key.name}", number)
            drawn[key.name] = key.search.draw(stream, rate)
        return drawn

    def trial(self, number: int, seeds: Sequence[int], drawn: Mapping[str, Value]) -> Trial:
        """Return a trial with these tuned values."""
        named = self.values(number, drawn)
        settings = tuple(sorted(named.items()))
        points = []
        for seed in seeds:
            trial_values = {**self.base, **named, "seed": seed}
            experiment = _checked(self.contender, trial_values, tuple(named))
            title = f"{self.contender.name}-trial-{number:02d}"
            title += f"-seed-{seed}" if len(seeds) > 1 else ""
            points.append(Point(settings, seed, experiment.fingerprint, self.note, title))
        return Trial(self.contender, number, drawn, tuple(points))


def problem_name(base: Mapping[str, Value]) -> str:
    """Return a digest of the values that decide a problem."""
    ignored = (local_keys() | OWN_KEYS) - {"num-rounds"}
    decisive = {name: value for name, value in base.items() if name not in ignored}
    text = json.dumps(decisive, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result_of(
    trial: Trial,
    folder: Path,
    objective: Objective,
    errors: Mapping[str, str] | None = None,
) -> Result:
    """Return the result of a trial, whose runs stand in the sweep's folder or failed.

    ``errors`` says of a run by its name why it failed.
    """
    results = [
        _result_of_run(
            trial, folder / point.name, objective, (errors or {}).get(point.name)
        )
        for point in trial.points
    ]
    seconds = sum(result.seconds for result in results)
    for result in results:
        if result.error:
            return replace(result, seconds=seconds)
    return Result(
        trial,
        fmean(result.score for result in results),
        fmean(result.accuracy for result in results),
        all(result.learnt for result in results),
        seconds,
        left_out=next((r.left_out for r in results if r.left_out), ""),
    )


def _result_of_run(
    trial: Trial, path: Path, objective: Objective, error: str | None
) -> Result:
    if not (path / MANIFEST).exists() or not is_finished(path):
        return Result(trial, FAILED, error=error or "the run did not finish")
    run = load_run(path)
    accuracy = score_of(run, MEAN_ACCURACY)
    guess = 100 * run.number_of_data("largest-class-train")
    seconds = (run.summary or {}).get("total_cpu_seconds", 0.0)
    score = score_of(run, objective)
    if not math.isfinite(score):
        return Result(trial, FAILED, accuracy, False, seconds, "no finite validation score")
    short = left_out_of(run, _judged_by(objective, run))
    return Result(trial, score, accuracy, accuracy > guess, seconds, left_out=short)


def score_of(run: Run, objective: Objective) -> float:
    """Return the score that chooses a trial, more being better; NaN without any.

    Variances, and scores of which less is better, count below 0. A client without a score
    counts as the worst that there is: without those whose training diverged the others'
    mean would look better.
    """
    measure = measure_and_score(objective)[0]
    ending, name = _MEASURES[measure]
    score = _judged_by(objective, run)
    is_variance = measure == "variance"
    sign = 1.0 if score.higher and not is_variance else -1.0
    if not left_out_of(run, score):
        # A variance is of the shown unit already.
        factor = 1.0 if is_variance else score.factor
        return last_mean(run, f"validation_{score.column}_{ending}") * factor * sign
    worst = score.factor * (score.least if score.higher else score.largest)
    if not math.isfinite(worst):
        return math.nan
    reports = [
        fairness_report(
            scores.percent + [worst] * (scores.num_asked - len(scores.of)), score
        )
        for scores in run.scores(f"validation_{score.column}", LAST)
    ]
    return fmean(getattr(report, name) for report in reports) * sign


def score_words(run: Run, objective: Objective) -> str:
    """Return the score that a trial is chosen by, in words."""
    short = left_out_of(run, _judged_by(objective, run))
    words = f"validation score {score_of(run, objective):.2f} ({objective})"
    return f"{words}, {short} have one" if short else words


def left_out_of(run: Run, score: Score = ACCURACY) -> str:
    """Return how few clients have a score; empty where all have."""
    evaluations = run.scores(f"validation_{score.column}", LAST)
    return min(evaluations, key=Scores.share).short if evaluations else ""


def best_of(results: list[Result]) -> Result:
    """Return the result with the best score; the earlier trial where two are equal."""
    return max(results, key=lambda result: (result.score, -result.trial.number))


def last_mean(run: Run, column: str) -> float:
    """Return the mean of a column's last evaluations; NaN without any."""
    values = run.column(column)[1][-LAST:]
    return fmean(values) if len(values) else math.nan


def _refuse_noise(contender: Contender, experiment: Experiment) -> None:
    """Refuse noise at the server, whose epsilon is that of one run and not of many."""
    for key in ("dp-noise-multiplier", "target-epsilon"):
        if experiment[key]:
            raise ConfigError(
                f"{contender.name}: key {key} with tuning: each trial publishes models of "
                "the same clients, and no epsilon covers all trials: tune without noise on "
                "public rows, then set the noise for one run"
            )


def _checked(
    contender: Contender, values: Mapping[str, object], overridden: tuple[str, ...]
) -> Experiment:
    try:
        return Experiment.from_values(values, overridden)
    except ConfigError as error:
        raise ConfigError(f"{contender.name}: {error}") from None
