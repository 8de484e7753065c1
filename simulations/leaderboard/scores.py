"""Scores of a leaderboard's final runs, and their differences from a baseline."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev

from fedsuite.experiment.experiment import Experiment
from fedsuite.results.layout import MANIFEST
from fedsuite.results.paired import Paired, paired
from fedsuite.results.reader import Run, load_run
from fedsuite.sweeps.sweep import is_finished
from fedsuite.sweeps.trials import LAST, Contender, Result, last_mean
from fedsuite.sweeps.tuning_page import words

MEASURES = ("mean", "worst_10", "variance")
"""Measures of a :class:`Final` that are compared."""

LEVEL = 0.05
LEAST = 0.5
"""Smallest mean difference, in points, that may be called one."""


@dataclass(frozen=True)
class Tried:
    """One trial of the tuning, as a line of ``tuning.csv``.

    Parameters
    ----------
    problem, method, trial
        Which it is.
    values
        Tuned values in words.
    score, accuracy, learnt, seconds, error
        As in :class:`~fedsuite.sweeps.trials.Result`.
    """

    problem: str
    method: str
    trial: int
    values: str
    score: float
    accuracy: float
    learnt: bool
    seconds: float
    error: str


@dataclass(frozen=True)
class Final:
    """One final run, as a line of ``finals.csv``.

    Parameters
    ----------
    problem, method, seed
        Which it is.
    mean, worst_10, variance
        Test accuracy over clients in per cent, mean of the last three evaluations: mean,
        mean of the worst tenth, and variance.
    megabytes, seconds
        Sent up and down, and processor seconds of the rounds without their evaluations.
    untrained
        Clients that sent back no training in any round.
    at_equal_megabytes, at_equal_seconds
        Mean accuracy at the last evaluation before the run had spent more than the
        baseline's whole run of that seed; NaN where no evaluation came before.
    unscored
        Most clients without an accuracy at one of these evaluations, which the means of
        accuracies leave out.
    epochs
        Passes that a client made over its training rows in the whole run, mean over
        clients. What it trains for a score alone does not count.
    clients, train_rows, test_rows, fewest_test_rows, most_test_rows
        Clients, their rows, and the test rows of the smallest and the largest client.
    """

    problem: str
    method: str
    seed: int
    mean: float
    worst_10: float
    variance: float
    megabytes: float
    seconds: float
    untrained: int
    at_equal_megabytes: float = math.nan
    at_equal_seconds: float = math.nan
    unscored: int = 0
    epochs: float = math.nan
    clients: int = 0
    train_rows: int = 0
    test_rows: int = 0
    fewest_test_rows: int = 0
    most_test_rows: int = 0

    @property
    def client_megabytes(self) -> float:
        """Megabytes both ways per client of the federation."""
        return self.megabytes / self.clients if self.clients else math.nan


@dataclass(frozen=True)
class Curve:
    """What a run had spent and reached at each evaluation.

    Parameters
    ----------
    accuracies
        Mean test accuracy over clients, per cent.
    megabytes, seconds
        Spent since the first round.
    """

    accuracies: tuple[float, ...]
    megabytes: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One method on a problem.

    Parameters
    ----------
    name
        Name of the contender.
    own_model
        Whether what is scored is each client's own model.
    tried
        Trials of the tuning.
    finals
        Final runs by seed; no entry for one that failed.
    failures
        Final runs that failed.
    fresh_splits
        Whether each seed drew its test rows anew.
    """

    name: str
    own_model: bool
    tried: tuple[Tried, ...]
    finals: Mapping[int, Final]
    failures: int
    fresh_splits: bool = False

    @property
    def best(self) -> Tried:
        """The trial whose values the final runs have."""
        return max(self.tried, key=lambda tried: (tried.score, -tried.trial))

    @property
    def test_share(self) -> float:
        """Test rows per training row where splits are drawn anew; 0 where they are not."""
        shares = [f.test_rows / f.train_rows for f in self.finals.values() if f.train_rows]
        return fmean(shares) if shares and self.fresh_splits else 0.0

    def values(self, measure: str) -> list[float]:
        """Return a measure of all final runs."""
        return [getattr(final, measure) for final in self.finals.values()]


@dataclass(frozen=True)
class Verdict:
    """A difference from the baseline, and whether it is one.

    Parameters
    ----------
    difference
        Over seeds, in points.
    p_value
        Two-sided, of a paired t test that is corrected where splits are drawn anew,
        adjusted by Holm over a problem's rows.
    seen
        Whether it is below 0.05, the mean is above half a point, and the corrected interval
        lies outside the placebos' spread.
    """

    difference: Paired
    p_value: float
    seen: bool


def tried_of(problem: str, result: Result) -> Tried:
    """Return a trial as a line of ``tuning.csv``."""
    trial = result.trial
    numbers = (result.score, result.accuracy, result.learnt, result.seconds)
    return Tried(
        problem,
        trial.contender.name,
        trial.number,
        words(trial.drawn),
        *numbers,
        result.error,
    )


def final_of(problem: str, contender: Contender, seed: int, run: Run) -> Final:
    """Return a finished run as a line of ``finals.csv``, without the equal spending."""
    curve = curve_of(run)
    rows = run.client_history("train", "num_examples")
    clients = {client for history in rows.values() for client in history}
    num_clients = int(run.manifest["num_clients"])
    data = run.manifest["data"]
    tested = [
        n
        for h in run.client_history("evaluate", "num_examples").values()
        for n in h.values()
    ]
    return Final(
        problem,
        contender.name,
        seed,
        last_mean(run, "accuracy_mean") * 100,
        last_mean(run, "accuracy_worst10") * 100,
        last_mean(run, "accuracy_variance"),
        curve.megabytes[-1],
        curve.seconds[-1],
        num_clients - len(clients),
        unscored=max((s.num_asked - len(s.of) for s in run.scores(last=LAST)), default=0),
        epochs=sum(_epochs(run)) / num_clients,
        clients=num_clients,
        train_rows=int(data["train-rows"]),
        test_rows=int(data["test-rows"]),
        fewest_test_rows=int(min(tested, default=0)),
        most_test_rows=int(max(tested, default=0)),
    )


def _epochs(run: Run) -> Iterator[float]:
    """Yield the passes of each client's training in each round."""
    batch = int(run.experiment["batch-size"])
    rows = run.client_history("train", "num_examples")
    for server_round, steps in run.client_history("train", "num_steps").items():
        for client, count in steps.items():
            num_rows = rows[server_round][client]
            yield count / math.ceil(num_rows / (batch or num_rows))


def final_words(run: Run) -> str:
    """Return the accuracy of a final run, as the page has it, in words."""
    mean = f"mean test accuracy {100 * last_mean(run, 'accuracy_mean'):.2f} %"
    short = [scores.short for scores in run.scores(last=LAST) if scores.short]
    return f"{mean} of {short[0]}" if short else mean


def curve_of(run: Run) -> Curve:
    """Return what a run had spent and reached at each evaluation."""
    sent = accumulate(
        row.get("bytes_down", 0) + row.get("bytes_up", 0) for row in run.rounds
    )
    spent = accumulate(row.get("cpu_seconds") or 0.0 for row in run.rounds)
    points = [
        (100 * row["accuracy_mean"], megabytes / 1e6, seconds)
        for row, megabytes, seconds in zip(run.rounds, sent, spent, strict=True)
        if row.get("accuracy_mean") is not None
    ]
    return Curve(*zip(*points, strict=True)) if points else Curve((), (), ())


def at_equal_spending(final: Final, curve: Curve, baseline: Final) -> Final:
    """Return a final run with its accuracy where it had spent what the baseline spent."""
    return replace(
        final,
        at_equal_megabytes=_reached(curve, curve.megabytes, baseline.megabytes),
        at_equal_seconds=_reached(curve, curve.seconds, baseline.seconds),
    )


def _reached(curve: Curve, spent: Sequence[float], limit: float) -> float:
    index = bisect_right(spent, limit * (1 + 1e-9))
    return curve.accuracies[index - 1] if index else math.nan


def finals_of(
    problem: str,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    folder: Path,
    baseline: str,
) -> list[Final]:
    """Return the finished final runs of a problem's folder."""
    finals: dict[tuple[str, int], Final] = {}
    curves: dict[tuple[str, int], Curve] = {}
    for contender in contenders:
        for seed in seeds:
            path = folder / final_name(contender, seed)
            if (path / MANIFEST).exists() and is_finished(path):
                run, key = load_run(path), (contender.name, seed)
                finals[key] = final_of(problem, contender, seed, run)
                curves[key] = curve_of(run)
    return [
        at_equal_spending(final, curves[key], finals[baseline, key[1]])
        if (baseline, key[1]) in finals
        else final
        for key, final in finals.items()
    ]


def final_name(contender: Contender, seed: int) -> str:
    """Return the name of a final run's folder."""
    return f"{contender.name}-seed-{seed}"


def own_model(contender: Contender) -> bool:
    """Return whether a contender scores each client's own model."""
    strategy = Experiment.from_values({"method": contender.fixed["method"]}).strategy
    whole = "score-training-data" not in strategy.WITHOUT_EFFECT
    personal = contender.fixed.get("personal-atoms", False)
    return bool(personal) or strategy.SCORED_MODEL != "shared" or not whole


def differences(row: Row, baseline: Row, measure: str) -> list[float]:
    """Return a measure's differences from the baseline, seed by seed."""
    return [
        getattr(final, measure) - getattr(baseline.finals[seed], measure)
        for seed, final in row.finals.items()
        if seed in baseline.finals
    ]


def verdicts(
    rows: Sequence[Row],
    baselines: Mapping[bool, Row],
    measure: str,
    noise: Mapping[bool, float],
) -> dict[str, Verdict]:
    """Return the verdict on each row that is no baseline, by name.

    Parameters
    ----------
    rows
        A problem's rows.
    baselines
        The baseline of shared models (False) and of clients' own (True).
    measure
        One of :data:`MEASURES`.
    noise
        The placebos' spread, as :func:`noise_floor` returns it.
    """
    compared: dict[str, tuple[Row, Paired, float]] = {}
    for row in rows:
        numbers = differences(row, baselines[row.own_model], measure)
        if row.name != baselines[row.own_model].name and len(numbers) > 1:
            difference = paired(numbers, row.test_share)
            p_value = t_test(numbers, row.test_share)
            compared[row.name] = row, difference, p_value
    adjusted = holm({name: p_value for name, (*_, p_value) in compared.items()})
    return {
        name: Verdict(
            difference,
            adjusted[name],
            adjusted[name] < LEVEL
            and abs(difference.mean) > LEAST
            and abs(difference.mean) - half_width(difference) > noise[row.own_model],
        )
        for name, (row, difference, _) in compared.items()
    }


def half_width(difference: Paired) -> float:
    """Return half of the corrected interval, or of the t interval without one."""
    corrected, plain = difference.corrected, difference.half_width
    return corrected if corrected is not None else plain or 0.0


def t_test(differences: Sequence[float], test_share: float = 0.0) -> float:
    """Return the two-sided p-value of a paired t test; 1 where all differences are 0.

    ``test_share`` corrects it for splits that are drawn anew, as
    :func:`fedsuite.results.paired.paired` corrects the interval.
    """
    from scipy.stats import t

    count = len(differences)
    if len(set(differences)) == 1:
        return 0.0 if differences[0] else 1.0
    scale = stdev(differences) * (1 / count + test_share) ** 0.5
    return float(2 * t.sf(abs(fmean(differences)) / scale, count - 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted by Holm's step-down procedure.

    The k-th smallest of n is multiplied by n - k + 1; none is below a smaller one, or
    above 1.
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for index, (name, p_value) in enumerate(ordered):
        largest = max(largest, min(1.0, p_value * (len(ordered) - index)))
        adjusted[name] = largest
    return adjusted


def noise_floor(
    rows: Sequence[Row], placebos: Mapping[str, str], measure: str
) -> dict[bool, float]:
    """Return the largest mean difference of a placebo from what it imitates, unsigned.

    Of placebos of shared models (False) and of clients' own (True); 0 without any.
    """
    named = {row.name: row for row in rows}
    spread = {False: 0.0, True: 0.0}
    for name, imitated in placebos.items():
        if name in named and imitated in named:
            row = named[name]
            if numbers := differences(row, named[imitated], measure):
                spread[row.own_model] = max(spread[row.own_model], abs(fmean(numbers)))
    return spread
