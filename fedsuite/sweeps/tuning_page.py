"""The page of a tuning, and its trials as a table."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsuite.core.files import atomic_write
from fedsuite.core.own_process import typed
from fedsuite.results.tables import csv_table, markdown_table
from fedsuite.sweeps.trials import LAST, Objective, Result, best_of, measure_and_score

_MEANINGS = {
    "mean": "mean {} over clients{}",
    "worst-10": "{} of the worst tenth of the clients{}",
    "variance": "the negative of the {}'s variance over clients{}",
}

LEFT_OUT = (
    " A client without a score, perhaps because it diverged, counts as the worst that "
    "there is."
)

_HEADER = ("contender", "trial", "values", "score", "mean accuracy", "cpu seconds", "error")


def write_page(
    folder: Path,
    problem: str,
    objective: Objective,
    results: Mapping[str, Sequence[Result]],
) -> None:
    """Write ``README.md`` and ``trials.csv`` into a tuning's folder."""
    rows = [_cells(result) for trials in results.values() for result in trials]
    atomic_write(folder / "trials.csv", csv_table([_HEADER, *rows]).encode())
    left_out = any(result.left_out for trials in results.values() for result in trials)
    summary = [["method", "best", "with the defaults", "trial", "values", "learnt"]]
    summary += [_summary(list(trials)) for trials in results.values()]
    text = (
        f"# Tuning on {problem}\n\n"
        f"Score: {meaning(objective)}, of the clients' validation rows, mean of the last "
        f"{LAST} evaluations. No test row has a part in it. Trial 0 has the defaults. "
        '"Learnt" counts the trials that beat always guessing the largest class.'
        f"{LEFT_OUT if left_out else ''}\n\n"
        f"{markdown_table(summary, (0, 4))}\nCommand: `{typed()}`\n\n"
        f"## All trials\n\n{markdown_table([_HEADER, *rows], (0, 2, 6))}"
    )
    atomic_write(folder / "README.md", text.encode())


def meaning(objective: Objective) -> str:
    """Return an objective in words."""
    measure, score = measure_and_score(objective)
    title, unit = "main score", ""
    if score is not None:
        title = score.title
        is_variance = measure == "variance"
        per_cent = ", in per cent squared" if is_variance else " in per cent"
        unit = per_cent if score.factor > 1 else ""
        unit += "" if score.higher or is_variance else ", below 0 as less is better"
    return _MEANINGS[measure].format(title, unit)


def words(values: Mapping[str, object]) -> str:
    """Return values as ``key=value`` words; the defaults where there are none."""
    return " ".join(f"{name}={value}" for name, value in values.items()) or "defaults"


def number(value: float) -> str:
    """Return a number with two digits; a dash where it is not finite."""
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _summary(results: list[Result]) -> list[str]:
    best, first = best_of(results), results[0]
    return [
        first.trial.contender.name,
        number(best.score),
        number(first.score),
        str(best.trial.number),
        words(best.trial.drawn),
        f"{sum(result.learnt for result in results)} of {len(results)}",
    ]


def _cells(result: Result) -> list[str]:
    trial = result.trial
    return [
        trial.contender.name,
        str(trial.number),
        words(trial.drawn),
        number(result.score) + (f" ({result.left_out})" if result.left_out else ""),
        number(result.accuracy),
        f"{result.seconds:.1f}",
        result.error.replace("|", "/"),
    ]
