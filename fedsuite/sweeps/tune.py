"""Tuning of methods under one budget, on the clients' validation rows.

The folder of a tuning holds ``trials/`` (a sweep), a folder per method with ``best.toml``,
``trials.csv`` and ``README.md``. A tuning that is started again does what is missing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tomli_w

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.files import atomic_write
from fedsuite.core.keys import Value
from fedsuite.core.output import print_line
from fedsuite.core.own_process import typed
from fedsuite.core.progress import Work
from fedsuite.experiment.experiment import naming
from fedsuite.sweeps import proposals
from fedsuite.sweeps.sweep import base_values, run_points
from fedsuite.sweeps.trials import (
    DEFAULT_FRACTION,
    VALIDATION,
    Contender,
    Objective,
    Result,
    Space,
    Trial,
    best_of,
    named_objective,
    result_of,
    score_words,
)
from fedsuite.sweeps.tuning_page import write_page

TRIALS = "trials"
BEST = "best.toml"


@dataclass(frozen=True)
class Budget:
    """What every method may spend.

    Parameters
    ----------
    trials
        Runs per method, the one with the defaults among them.
    objective
        What is scored: ``mean`` accuracy over clients, accuracy of the ``worst-10`` per
        cent, or their ``variance``.
    seeds
        Seeds of each trial's runs.
    workers
        Runs at a time; 0 is one per core.
    """

    trials: int = 12
    objective: Objective = "mean"
    seeds: tuple[int, ...] = (0,)
    workers: int = 0


def tune_file(
    file: Path,
    methods: Sequence[str],
    budget: Budget,
    output: Path,
    overrides: Mapping[str, Value],
    tuned: Sequence[str] = (),
) -> dict[str, Result]:
    """Tune methods on an experiment, and write what was found.

    Parameters
    ----------
    file
        The experiment; its method, seed, run-name and output-dir do not count.
    methods
        Methods to tune.
    budget
        What each may spend.
    output
        Folder, new or of the same tuning.
    overrides
        Values that override the file's.
    tuned
        Keys to tune beside the learning rate and each method's own.

    Returns
    -------
    dict
        The best trial of each method.

    Raises
    ------
    ConfigError
        Before anything starts, if a method cannot be run on the experiment.
    RunError
        If all trials of a method failed.
    Stopped
        If Ctrl-C or SIGTERM ends the tuning; the message has the command to go on.
    """
    with naming(file, overrides):
        base = tuning_base(file, overrides)
    contenders = [Contender.of_method(name, tuned) for name in dict.fromkeys(methods)]
    if not contenders:
        raise ConfigError("--methods: expected at least one method")
    folder = Path(os.path.abspath(output))
    work = Work("runs", budget.trials * len(budget.seeds) * len(contenders))
    results = tune(base, contenders, budget, folder, work)
    write_page(folder, file.name, named_objective(budget.objective, base), results)
    print_line(f"page: {folder / 'README.md'}")
    for trials in results.values():
        tell_divergence(trials)
    lost = [name for name, trials in results.items() if best_of(trials).error]
    if lost:
        raise RunError(
            f"all trials of {', '.join(lost)} failed; the first: "
            f"{results[lost[0]][0].error}; logs: {folder / TRIALS / 'logs'}"
        )
    return {name: best_of(trials) for name, trials in results.items()}


def tuning_base(file: Path, overrides: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that all trials of all methods share."""
    named = {**overrides, "method": "fedavg"}
    base = base_values(file, named)
    del base["method"]
    if not base.get(VALIDATION):
        base[VALIDATION] = DEFAULT_FRACTION
    return base


def tune(
    base: Mapping[str, Value],
    contenders: Sequence[Contender],
    budget: Budget,
    folder: Path,
    work: Work,
) -> dict[str, list[Result]]:
    """Run the missing trials of contenders; return all results, in the order of trials.

    Parameters
    ----------
    base
        The problem.
    contenders
        Methods with what is fixed for each.
    budget
        What each may spend.
    folder
        Folder of the tuning, absolute.
    work
        What the trials are part of, for the terminal.
    """
    spaces = [Space.of(contender, base) for contender in contenders]
    results: dict[str, list[Result]] = {c.name: [] for c in contenders}
    while missing := [s for s in spaces if len(results[s.contender.name]) < budget.trials]:
        trials = []
        for space in missing:
            earlier = results[space.contender.name]
            for number, drawn in proposals.propose(space, earlier, budget.trials):
                trials.append(space.trial(number, budget.seeds, drawn))
        new_results = run_trials(base, trials, budget, folder, work)
        for result in new_results:
            results[result.trial.contender.name].append(result)
    for name, method_results in results.items():
        if not best_of(method_results).error:
            _write_best(folder / name, base, budget, method_results)
    return results


def run_trials(
    base: Mapping[str, Value],
    trials: Sequence[Trial],
    budget: Budget,
    folder: Path,
    work: Work,
) -> list[Result]:
    """Run the missing ones of some trials, and return the results of all."""
    runs = folder / TRIALS
    points = [point for trial in trials for point in trial.points]
    lines = run_points(
        runs,
        base,
        points,
        budget.workers,
        work,
        compared=False,
        scored=partial(score_words, objective=budget.objective),
    )
    failures = dict(line.split(": ", 1) for line in lines)
    return [result_of(trial, runs, budget.objective, failures) for trial in trials]


def tell_divergence(results: Sequence[Result]) -> None:
    """Warn where a method fails, or learns nothing, in most of its space."""
    lost = [result for result in results if not result.learnt]
    if len(lost) > len(results) / 2:
        failed = sum(bool(result.error) for result in lost)
        print_line(
            f"{results[0].trial.contender.name}: {len(lost)} of {len(results)} trials "
            f"learnt nothing, {failed} of them failed: its values are hard to find here"
        )


def _write_best(
    folder: Path,
    base: Mapping[str, Value],
    budget: Budget,
    results: list[Result],
) -> None:
    """Write the experiment of the best trial, with where it comes from."""
    best = best_of(results)
    values = {**base, **best.trial.settings}
    untuned = results[0]
    where = (
        f"# {best.trial.contender.name}, trial {best.trial.number} of {len(results)}: "
        f"{budget.objective} {best.score:.2f} on the clients' validation rows,\n"
        f"# {untuned.score:.2f} with the defaults. Found by: {typed()}\n"
        f"# {VALIDATION} = 0 trains on all rows.\n"
    )
    folder.mkdir(exist_ok=True)
    atomic_write(
        folder / BEST, (where + tomli_w.dumps(dict(sorted(values.items())))).encode()
    )
