"""From measured runs to tables: pure functions, so that tables can be made again."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from measuring.watch import Mark, Watched


@dataclass(frozen=True)
class ArmRun:
    """One run of one arm.

    Parameters
    ----------
    arm
        Its name.
    seconds, cpu
        Wall and processor seconds of a steady round.
    start
        Wall seconds from the start of the command to the end of the first round.
    wall, whole_cpu
        Wall and processor seconds of the command.
    peak_mib
        Memory.
    rounds
        Wall seconds of each round from the second on.
    accuracy
        Of the final model over all test rows; None where it was not judged.
    fingerprint
        Of the final parameters; empty where there are none.
    """

    arm: str
    seconds: float
    cpu: float
    start: float
    wall: float
    whole_cpu: float
    peak_mib: float
    rounds: tuple[float, ...]
    accuracy: float | None = None
    fingerprint: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ArmRun":
        """Return the run that a row of the results holds."""
        return cls(**{**row, "rounds": tuple(row["rounds"])})


def steady(marks: Sequence[Mark]) -> tuple[float, float]:
    """Return wall and processor seconds of a round, from the second to the last but one.

    The first round loads the data, and after the last the model is evaluated.

    Raises
    ------
    ValueError
        If there are fewer than three rounds.
    """
    if len(marks) < 3:
        raise ValueError(f"{len(marks)} rounds: expected at least 3")
    first, last, count = marks[0], marks[-2], len(marks) - 2
    return (last.wall - first.wall) / count, (last.cpu - first.cpu) / count


def arm_run(arm: str, watched: Watched) -> ArmRun:
    """Return what a watched run is in the results."""
    seconds, cpu = steady(watched.marks)
    walls = [mark.wall for mark in watched.marks]
    return ArmRun(
        arm=arm,
        seconds=seconds,
        cpu=cpu,
        start=walls[0],
        wall=watched.wall,
        whole_cpu=watched.cpu,
        peak_mib=watched.peak_mib,
        rounds=tuple(b - a for a, b in itertools.pairwise(walls)),
    )


def by_arm(runs: Iterable[ArmRun]) -> dict[str, list[ArmRun]]:
    """Return the runs of each arm, in the order in which arms first appear."""
    grouped: dict[str, list[ArmRun]] = {}
    for run in runs:
        grouped.setdefault(run.arm, []).append(run)
    return grouped


def two(values: Sequence[float], digits: int) -> str:
    """Return minimum and median."""
    return f"{min(values):.{digits}f}, {statistics.median(values):.{digits}f}"


def ratios(values: Sequence[float], base: Sequence[float]) -> str:
    """Return the ratio of the minima and that of the medians; a dash over nothing."""
    if min(base) <= 0:
        return "-"
    middle = statistics.median(values) / statistics.median(base)
    return f"{min(values) / min(base):.2f}, {middle:.2f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def speed_table(runs: Sequence[ArmRun], base: str) -> str:
    """Return the table of all arms; pairs are minimum and median.

    Parameters
    ----------
    runs
        All runs of all arms.
    base
        The arm that the others are divided by; without runs of it there are no ratios.
    """
    grouped = by_arm(runs)
    over = f"/ {base}"
    header = ("arm", "s/round", over, "CPU s/round", over, "to the end of round 1, s")
    rows = []
    for arm, arm_runs in grouped.items():
        seconds, cpu = ([getattr(r, key) for r in arm_runs] for key in ("seconds", "cpu"))
        compared = ["-", "-"]
        if base in grouped:
            compared = [
                ratios(seconds, [r.seconds for r in grouped[base]]),
                ratios(cpu, [r.cpu for r in grouped[base]]),
            ]
        accuracies = [r.accuracy for r in arm_runs if r.accuracy is not None]
        rows.append(
            (
                arm,
                two(seconds, 4),
                compared[0],
                two(cpu, 4),
                compared[1],
                two([r.start for r in arm_runs], 1),
                two([r.wall for r in arm_runs], 1),
                two([r.whole_cpu for r in arm_runs], 1),
                f"{statistics.median(r.peak_mib for r in arm_runs):.0f}",
                f"{100 * statistics.fmean(accuracies):.2f}" if accuracies else "-",
            )
        )
    rest = ("whole run, s", "whole run, CPU s", "peak MiB", "accuracy, %")
    return markdown((*header, *rest), rows)


def work_table(runs: Sequence[ArmRun], work: Mapping[str, float], base: str) -> str:
    """Return the table of methods: time and counted work of a round, over the base's.

    Parameters
    ----------
    runs
        All runs.
    work
        Multiplications of a round, by arm.
    base
        The arm that the others are divided by: FedAvg in the same engine.
    """
    grouped = by_arm(runs)
    header = ("method", "s/round", f"/ {base}", "work", f"work / {base}", "time / work")
    rows = []
    for arm, count in work.items():
        seconds, of_base = ([r.seconds for r in grouped[name]] for name in (arm, base))
        more = count / work[base]
        beyond = statistics.median(seconds) / statistics.median(of_base) / more
        rows.append(
            (
                arm,
                two(seconds, 4),
                ratios(seconds, of_base),
                f"{count:.3g}",
                f"{more:.3f}",
                f"{beyond:.3f}",
            )
        )
    return markdown(header, rows)


def second_core_table(runs: Sequence[ArmRun]) -> str:
    """Return what a second worker brings, beside what a second core could bring.

    Two runs at once do twice the work of one; were they as fast as one alone, a second
    core could bring 2.00. Empty where ``local``, ``local-2`` or ``local-twice`` is missing.
    """
    grouped = by_arm(runs)
    names = ("local", "local-2", "local-twice")
    if not all(name in grouped for name in names):
        return ""
    one, two_workers, at_once = ([r.seconds for r in grouped[name]] for name in names)
    most = ratios([2 * seconds for seconds in one], at_once)
    row = (
        two(one, 4),
        two(two_workers, 4),
        two(at_once, 4),
        ratios(one, two_workers),
        most,
    )
    header = (*names, "local / local-2", "2 local / local-twice")
    return markdown(header, [row])


def disagreements(
    runs: Sequence[ArmRun], base: str, same: Iterable[str], tolerance: float
) -> list[str]:
    """Return in words where arms do not do the same: other bits, or other accuracy.

    Parameters
    ----------
    runs
        All runs.
    base
        The arm that others must agree with.
    same
        Arms whose final parameters must have its bits; arms that are not among the runs
        are skipped.
    tolerance
        Largest difference of mean accuracies, as fractions, of any arm.
    """
    grouped = by_arm(runs)
    if base not in grouped:
        return []
    expected = grouped[base][0]
    differences = []
    for arm in (base, *same):
        if any(r.fingerprint != expected.fingerprint for r in grouped.get(arm, [])):
            differences.append(f"{arm}: final parameters differ from those of {base}")
    middle = _accuracy(grouped[base])
    for arm, of_arm in grouped.items():
        accuracy = _accuracy(of_arm)
        if middle is None or accuracy is None:
            continue
        if abs(accuracy - middle) > tolerance:
            differences.append(
                f"{arm}: accuracy {accuracy:.4f}, {base} {middle:.4f}: more than "
                f"{tolerance} apart"
            )
    return differences


def _accuracy(runs: Sequence[ArmRun]) -> float | None:
    known = [run.accuracy for run in runs if run.accuracy is not None]
    return statistics.fmean(known) if known else None
