"""Round times of methods, and numbers of rounds in equal time, from runs.

Figure 3a and the rounds of Table 3 of FedAKD's paper. The budget is the time of R rounds of
one method. A method with s seconds per round gets R s_budget / s rounds, rounded to the
nearest, at least 1. The time of a round is the median over rounds and seeds, without each
run's first round, in which data are read and models built.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.core.output import print_line
from fedsuite.results.analysis_files import Cell, Output, Table
from fedsuite.results.groups import Group, group_runs
from fedsuite.results.plots import PALETTE, dress, escape_dollars
from fedsuite.results.reader import Run, load_run

APART = "evaluation taken off"
UNEVALUATED = "rounds without evaluation"
SCORED = "scoring of trained models included"

MOST_ROUNDS = 10**9
"""No method gets more rounds than this, whatever its folder says of its seconds."""


class Clock(StrEnum):
    """Kind of time; the value names columns of ``rounds.jsonl``."""

    WALL = "wall"
    CPU = "cpu"

    @property
    def column(self) -> str:
        """Column of ``rounds.jsonl``."""
        return "seconds" if self is Clock.WALL else "cpu_seconds"


class Quartiles(NamedTuple):
    """Seconds per round."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Round times of one experiment.

    Parameters
    ----------
    how, num_timed
        Which rounds, and which parts of them, were timed, and the number of rounds.
    seconds
        Quartiles by clock. Processor time is missing where clients ran in other processes.
    """

    label: str
    runs: tuple[Run, ...]
    how: str
    num_timed: int
    seconds: dict[Clock, Quartiles]

    def median(self, clock: Clock) -> float:
        """Return the median seconds of a round, or raise :class:`RunError`."""
        if clock not in self.seconds or not self.seconds[clock].median > 0:
            raise RunError(
                f"{self.label}: no {clock.value} time of its rounds is known: processor "
                "time is known of the local engine alone; choose another --clock"
            )
        return self.seconds[clock].median


def timing(group: Group) -> Timing:
    """Return the round times of an experiment."""
    by_run = [(run, *timed_rounds(run)) for run in group.runs]
    local = all(run.experiment.get("engine") == "local" for run in group.runs)
    seconds = {}
    for clock in Clock if local else (Clock.WALL,):
        times = np.concatenate([_times(rows, how, clock) for _, how, rows in by_run])
        if times.size:
            quartiles = np.quantile(times, (0.25, 0.5, 0.75))
            seconds[clock] = Quartiles(*map(float, quartiles))
    how = "; ".join(sorted({how for _, how, _ in by_run}))
    count = sum(len(rows) for *_, rows in by_run)
    return Timing(group.label, group.runs, how, count, seconds)


def timed_rounds(run: Run) -> tuple[str, list[dict[str, Any]]]:
    """Return in words what is timed of a run, and the timed rounds."""
    if not run.rounds:
        raise RunError(f"{run.path}: no round with a time yet")
    rows = list(run.rounds[1:] or run.rounds)
    # Trained models are scored inside training, so training's time includes that.
    if not run.experiment.get("score-trained"):
        return APART, rows
    unevaluated = [row for row in rows if row.get("evaluate_num_examples") is None]
    return (UNEVALUATED, unevaluated) if unevaluated else (SCORED, rows)


def _times(rows: Sequence[dict[str, Any]], how: str, clock: Clock) -> NDArray[np.float64]:
    columns = [clock.column]
    # The column of processor time leaves evaluation out by itself.
    if clock is Clock.WALL and how in (APART, SCORED):
        columns.append("seconds_evaluate")
    known = [row for row in rows if all(row.get(name) is not None for name in columns)]
    times = np.array([row[clock.column] for row in known], dtype=np.float64)
    return times - [row["seconds_evaluate"] for row in known] if columns[1:] else times


def equal_rounds(num_rounds: int, budget: float, seconds: float) -> int:
    """Return how many rounds of ``seconds`` take as long as ``num_rounds`` of ``budget``.

    Halves are rounded up, and the least is 1.
    """
    rounds = min(num_rounds * budget / seconds, MOST_ROUNDS)
    return max(1, math.floor(rounds + 0.5))


def chosen(timings: Sequence[Timing], label: str | None, usual: str) -> Timing:
    """Return the experiment of a label, or else of the usual method, or else the first."""
    if label is None:
        methods = [timing.runs[0].experiment.get("method") for timing in timings]
        return timings[methods.index(usual) if usual in methods else 0]
    by_label = {timing.label: timing for timing in timings}
    if label not in by_label:
        raise RunError(f"no experiment {label!r}: there are {'; '.join(by_label)}")
    return by_label[label]


def write_round_time(
    runs: Sequence[Path],
    output: Path,
    *,
    baseline: str | None,
    budget: str | None,
    rounds: int,
    clock: Clock,
    overwrite: bool,
) -> None:
    """Write the times of rounds, and the rounds that each method gets in the same time.

    Parameters
    ----------
    runs, output
        Folders of the runs, and of table and plot.
    baseline, budget
        Label whose rounds are 1, and label that sets the time; None for those of FedAvg
        and FedAKD.
    rounds
        Rounds of the label that sets the time; 0 for as many as its runs have.
    clock
        Kind of time.
    overwrite
        Whether files of an earlier call are replaced.
    """
    timings = [timing(group) for group in group_runs([load_run(path) for path in runs])]
    base, payer = chosen(timings, baseline, "fedavg"), chosen(timings, budget, "fedakd")
    rounds = rounds or max(run.last_round for run in payer.runs)
    equal = [equal_rounds(rounds, payer.median(clock), t.median(clock)) for t in timings]
    ratios = [t.median(clock) / base.median(clock) for t in timings]
    files = Output.claim(output, "round_time", overwrite=overwrite)
    columns = (
        *("experiment", "seeds", "rounds timed", "what", "s/round", "25 %", "75 %"),
        *("CPU s/round", "CPU 25 %", "CPU 75 %", f"times {base.label}", "rounds"),
    )
    cells = [
        (t.label, len(t.runs), t.num_timed, t.how, *_seconds(t), ratio, number)
        for t, ratio, number in zip(timings, ratios, equal, strict=True)
    ]
    note = (
        "Seconds per round: median and quartiles over rounds and seeds, without each run's "
        "first round; processor time is that of the process that runs the clients, no GPU. "
        f"rounds: those in the time of {rounds} rounds of {payer.label}, by {clock.value} "
        "time. Only runs on one machine, under one load, can be compared."
    )
    files.write(Table(columns, cells, note), time_figure(timings))
    for line in instructions(timings, equal):
        print_line(line)


def instructions(timings: Sequence[Timing], equal: Sequence[int]) -> list[str]:
    """Return the commands that give each experiment its rounds and compare them."""
    pairs = list(zip(timings, equal, strict=True))
    lines = [f"{t.label}: --set num-rounds={number}" for t, number in pairs]
    lines += [
        f"fedsuite resume {shlex.quote(str(run.path))} --num-rounds {number}"
        for t, number in pairs
        for run in t.runs
        if run.last_round < number
    ]
    paths = [str(run.path) for t in timings for run in t.runs]
    cuts = [f"--at-round={t.label}={number}" for t, number in pairs]
    return [*lines, shlex.join(["fedsuite", "fairness", *paths, *cuts])]


def _seconds(timing: Timing) -> list[Cell]:
    cells: list[Cell] = []
    for clock in Clock:
        times = timing.seconds.get(clock)
        cells += [times.median, times.low, times.high] if times else [None] * 3
    return cells


def time_figure(timings: Sequence[Timing]) -> Figure:
    """Draw median round times as bars, with quartiles, a panel per clock."""
    clocks = [clock for clock in Clock if any(clock in t.seconds for t in timings)]
    size = (4.6 * len(clocks) + 1.4, 1.3 + 0.36 * len(timings))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(clocks), squeeze=False, sharey=True)[0]
    for axes, clock in zip(grid, clocks, strict=True):
        for place, group_timing in enumerate(timings):
            if clock in group_timing.seconds:
                low, median, high = group_timing.seconds[clock]
                errors = [[median - low], [high - median]]
                colour = PALETTE[place % len(PALETTE)]
                axes.barh(place, median, xerr=errors, color=colour, capsize=3)
        name = "Wall-clock" if clock is Clock.WALL else "Processor"
        dress(axes, f"{name} time of a round", "seconds", "")
    grid[0].set_yticks(range(len(timings)), [escape_dollars(t.label) for t in timings])
    grid[0].invert_yaxis()
    return figure
