"""Leaderboards: methods tuned under one budget, then trained on fresh seeds.

The folder of a leaderboard holds a folder per problem, with ``tuning/`` (a tuning) and
``test/`` (a sweep of the chosen values over fresh seeds), and the page with its tables.
What is missing follows from the folder: a leaderboard that is started again, or with one
more method, runs that alone.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedsuite.core.errors import ConfigError
from fedsuite.core.files import atomic_write
from fedsuite.core.output import print_line
from fedsuite.core.progress import Work
from fedsuite.core.text import read_text
from fedsuite.experiment.experiment import Experiment
from fedsuite.sweeps.points import Point
from fedsuite.sweeps.sweep import run_points
from fedsuite.sweeps.trials import Contender, Result, best_of
from fedsuite.sweeps.tune import Budget, tell_divergence, tune
from simulations.leaderboard.page import (
    FINALS,
    choices,
    in_order,
    kept_lines,
    read_table,
    tables_of,
    with_choices,
    write_page,
    write_tables,
)
from simulations.leaderboard.page import TUNING as TRIED
from simulations.leaderboard.scores import (
    Final,
    Tried,
    final_name,
    final_words,
    finals_of,
    tried_of,
)
from simulations.leaderboard.suite import Problem, Suite, read_suite

TUNING = "tuning"
TEST = "test"


def run_leaderboard(
    file: Path,
    output: Path,
    *,
    workers: int = 0,
    problems: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> None:
    """Do what is missing of a leaderboard, and write its tables and its page.

    Parameters
    ----------
    file
        The suite.
    output
        Folder of the leaderboard.
    workers
        Runs at a time; 0 is one per core.
    problems, methods
        Names to restrict the work to; none is all. The baselines and the placebo always
        take part. Tables and page keep the lines of what does not take part.

    Raises
    ------
    ConfigError
        If the suite or a name is wrong, or a contender cannot be run on its problem.
    Stopped
        If Ctrl-C or SIGTERM ends the work; the message has the command to go on.
    """
    suite = read_suite(file)
    chosen = [_restricted(p, suite, methods) for p in _named(suite, problems)]
    folder = Path(os.path.abspath(output))
    command = _command(file, output, workers, problems, methods)
    parts = [
        len(p.contenders) * (p.trials * len(p.tuning_seeds) + len(p.seeds)) for p in chosen
    ]
    work = Work("runs of the leaderboard", sum(parts))
    for problem in chosen:
        print_line(f"{problem.title}: {len(problem.contenders)} methods")
        finals, tried = run_problem(problem, suite, folder / problem.name, workers, work)
        replaced = {(problem.name, contender.name) for contender in problem.contenders}
        finals += kept_lines(folder / FINALS, Final, replaced)
        tried += kept_lines(folder / TRIED, Tried, replaced)
        write_tables(folder, in_order(suite, finals), in_order(suite, tried))
        _write_page(suite, folder, command)
    print_line(f"page: {folder / 'README.md'}")


def rewrite_page(file: Path, output: Path, others: Sequence[Path] = ()) -> None:
    """Write the page of a leaderboard again from its tables, without its runs.

    ``others`` are pages that have the table of choices between marks.
    """
    suite = read_suite(file)
    _write_page(suite, output, _command(file, output, 0, (), ()))
    for page in others:
        text = with_choices(read_text(page), choices_of(suite, output))
        atomic_write(page, text.encode())


def choices_of(suite: Suite, folder: Path) -> str:
    """Return the table of choices of a leaderboard's folder."""
    finals, tried = read_table(folder / FINALS, Final), read_table(folder / TRIED, Tried)
    return choices(suite, tables_of(suite, finals, tried))


def _write_page(suite: Suite, folder: Path, command: str) -> None:
    finals, tried = read_table(folder / FINALS, Final), read_table(folder / TRIED, Tried)
    write_page(folder, suite, finals, tried, command)


def run_problem(
    problem: Problem, suite: Suite, folder: Path, workers: int, work: Work
) -> tuple[list[Final], list[Tried]]:
    """Tune the contenders of a problem, and train them on fresh seeds."""
    budget = Budget(problem.trials, suite.objective, problem.tuning_seeds, workers)
    results = tune(problem.base, problem.contenders, budget, folder / TUNING, work)
    for method_results in results.values():
        tell_divergence(method_results)
    points = [
        point
        for contender in problem.contenders
        for point in final_points(problem, contender, results[contender.name])
    ]
    # Of a method whose trials all failed there are no final runs.
    work.done += len(problem.contenders) * len(problem.seeds) - len(points)
    run_points(
        folder / TEST,
        problem.base,
        points,
        workers,
        work,
        compared=False,
        scored=final_words,
    )
    finals = finals_of(
        problem.name, problem.contenders, problem.seeds, folder / TEST, problem.baseline
    )
    tried = [
        tried_of(problem.name, r)
        for method_results in results.values()
        for r in method_results
    ]
    return finals, tried


def final_points(
    problem: Problem, contender: Contender, results: Sequence[Result]
) -> list[Point]:
    """Return the final runs of a contender; none where all its trials failed."""
    best = best_of(list(results))
    if best.error:
        return []
    named = best.trial.settings
    points = []
    for seed in problem.seeds:
        values = {**problem.base, **named, "seed": seed}
        fingerprint = Experiment.from_values(values, tuple(named)).fingerprint
        title = final_name(contender, seed)
        points.append(
            replace(best.trial.points[0], seed=seed, fingerprint=fingerprint, title=title)
        )
    return points


def _named(suite: Suite, names: Sequence[str]) -> list[Problem]:
    known = {problem.name: problem for problem in suite.problems}
    for name in names:
        if name not in known:
            raise ConfigError(f"problem {name!r}: expected one of {', '.join(known)}")
    return [known[name] for name in names] if names else list(suite.problems)


def _restricted(problem: Problem, suite: Suite, names: Sequence[str]) -> Problem:
    """Return a problem with the named contenders and those that they are compared with."""
    if not names:
        return problem
    known = {contender.name for p in suite.problems for contender in p.contenders}
    for name in names:
        if name not in known:
            raise ConfigError(f"method {name!r}: the suite has {', '.join(sorted(known))}")
    wanted = {*names, problem.baseline, *problem.own_baselines, *suite.placebos}
    kept = tuple(c for c in problem.contenders if c.name in wanted)
    return replace(problem, contenders=kept)


def _command(
    file: Path, output: Path, workers: int, problems: Sequence[str], methods: Sequence[str]
) -> str:
    words = ["python", "-m", "simulations.leaderboard", str(file), "--output", str(output)]
    words += ["--problems", ",".join(problems)] if problems else []
    words += ["--methods", ",".join(methods)] if methods else []
    return shlex.join([*words, *(["--workers", str(workers)] if workers else [])])
