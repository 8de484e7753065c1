"""Comparisons of runs: means, spreads over seeds, and warnings of unfair comparisons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Self

from fedsuite.core.errors import RunError
from fedsuite.core.files import atomic_write
from fedsuite.core.metrics import fairness_report, same_tails, tail_words
from fedsuite.core.tasks import ACCURACY, Score
from fedsuite.results.groups import SEED, Group, group_runs
from fedsuite.results.likeness import (
    keys_that_differ,
    partition_of,
    partition_warnings,
    seeds_text,
)
from fedsuite.results.reader import Client, Run, Scores, load_run
from fedsuite.results.score import main_score, score_of
from fedsuite.results.tables import (
    FittingTable,
    console_table,
    csv_table,
    latex_table,
    latex_text,
    markdown_table,
    markdown_text,
)

LAST = 10
"""Number of last evaluations in the column of their mean accuracy."""

COLUMNS = {
    "mean": "accuracy",
    "worst_5": "worst 5 %",
    "worst_10": "worst 10 %",
    "best_5": "best 5 %",
    "variance": "variance",
    "last": f"last {LAST}",
}
"""Headings of the metrics by name."""

FIRST_TO_GO = ("best_5", "variance", "worst_5", "last")
"""Metrics that a narrow terminal leaves out, in this order."""

OVER_CLIENTS = tuple(name for name in COLUMNS if name != "last")
"""Metrics of one accuracy per client."""


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, and sample standard deviation (n - 1); None for a single seed.

    Both are shown with ``digits`` behind the point.
    """

    mean: float
    std: float | None
    digits: int = 2

    def __str__(self) -> str:
        digits = self.digits
        spread = "" if self.std is None else f" \N{PLUS-MINUS SIGN} {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class Row:
    """One experiment of a comparison.

    Parameters
    ----------
    label
        Method and keys that distinguish the experiment.
    num_rounds
        Fewest and most rounds of the runs.
    by_seed
        Metrics by name in :data:`COLUMNS`, per seed, of accuracies in per cent; empty for a
        run without accuracies.
    partitions
        Fingerprint of the partition per seed; empty where unknown.
    scores
        The evaluations that the metrics are of, per seed.
    test_share
        Test rows per training row where each seed draws a split of its own, else 0.
    incomplete
        Whether clients have no score here that have one in another row on the same seed,
        perhaps because they diverged: means are then over other clients.
    digits
        Digits behind the point of the numbers that are shown.
    """

    label: str
    num_seeds: int
    num_rounds: tuple[int, int]
    by_seed: dict[object, dict[str, float]]
    partitions: dict[object, str]
    scores: dict[object, tuple[Scores, ...]] = field(default_factory=dict)
    test_share: float = 0.0
    incomplete: bool = False
    digits: int = 2

    @property
    def metrics(self) -> dict[str, Spread | None]:
        """Spread over seeds by metric; None for a metric that no run has."""
        return {
            name: spread(
                [run[name] for run in self.by_seed.values() if name in run], self.digits
            )
            for name in COLUMNS
        }

    @property
    def num_scored(self) -> int:
        """Most clients that a number is over; 0 without a score."""
        return max((len(one.of) for of in self.scores.values() for one in of), default=0)

    @property
    def short(self) -> str:
        """The fewest clients that a number is over, in words; empty where it is all."""
        incomplete = [one for scores in self.scores.values() for one in scores if one.short]
        return min(incomplete, key=Scores.share).short if incomplete else ""


@dataclass(frozen=True)
class Comparison:
    """A table of experiments, with the runs of each row.

    Parameters
    ----------
    rows
        One row per experiment; those with ``incomplete`` last.
    warnings
        One line per reason why the rows are hard to compare.
    groups
        The runs of each row, one per seed.
    evaluations
        Number of last evaluations that the metrics average.
    baseline
        Label of the row that differences are from.
    score
        What is compared.
    keys
        Each key in which the experiments differ, with its value in each row.
    placebos
        Labels of the rows that can only differ from the baseline by chance.
    """

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    groups: tuple[Group, ...]
    evaluations: int
    baseline: str
    score: Score
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    placebos: tuple[str, ...] = ()

    def of_score(self, column: str) -> Self:
        """Return the same comparison by another score."""
        rows, groups = _ranked(self.groups, self.evaluations, column)
        return replace(self, rows=rows, groups=groups, score=score_of(column))

    @property
    def columns(self) -> dict[str, str]:
        """Headings of the metrics of the tables, by name.

        Where they are the worst 10 % too, the worst 5 % are left out.
        """
        counts = [row.num_scored for row in self.rows if row.num_scored]
        alike = all(map(same_tails, counts))
        most = max(counts, default=0)
        names = {
            **COLUMNS,
            "mean": self.score.title,
            "worst_5": tail_words("worst", 5, most),
            "worst_10": tail_words("worst", 10, most),
            "best_5": tail_words("best", 5, most),
        }
        return {
            n: heading for n, heading in names.items() if not (alike and n == "worst_5")
        }

    @property
    def legend(self) -> str:
        """Explanation of the numbers."""
        when = (
            "at the last evaluation"
            if self.evaluations == 1
            else f"means of the last {self.evaluations} evaluations"
        )
        few = any(0 < row.num_scored <= 10 for row in self.rows)
        some = few and any(row.num_scored > 10 for row in self.rows)
        one = "Of ten clients or fewer the worst 10 % are one client. " * some
        name = self.score.title
        heading = self.score.label[:1].upper() + self.score.label[1:]
        better = "" if self.score.higher else ", less is better"
        return (
            f"{heading} over clients{better}, {when}; last {LAST}: mean "
            f"{name} of the last {LAST} evaluations. {one}"
            "Spread: sample standard deviation over seeds."
        )


def compare(
    paths: Sequence[str | Path],
    evaluations: int = 1,
    score: str | None = None,
    baseline: str | None = None,
    placebos: Sequence[str] = (),
) -> Comparison:
    """Return the comparison of runs' experiments, over seeds.

    Parameters
    ----------
    paths
        Folders of runs. The first of several runs of one experiment and seed counts.
    evaluations
        Number of last evaluations to average per run, at least 1; a run with fewer averages
        all.
    score
        Score to compare, a column of ``clients.jsonl`` such as ``whole_test_accuracy``;
        None is the main score of the runs' task.
    baseline
        Label of the experiment to subtract, pair by pair; None is the first.
    placebos
        Labels of experiments that can only differ from the baseline by chance.

    Raises
    ------
    RunError
        If there is no run, a folder holds no run, no run has the column, or no experiment
        has the label.
    """
    if not paths:
        raise RunError("nothing to compare: give the folders of one or more runs")
    repeated: list[str] = []
    runs = [load_run(path) for path in paths]
    groups = tuple(_one_per_seed(group, repeated) for group in group_runs(runs))
    labels = [group.label for group in groups]
    column = score or _shared_main(runs)
    rows, groups = _ranked(groups, evaluations, column)
    if score not in (None, ACCURACY.column) and not any(
        any(row.by_seed.values()) for row in rows
    ):
        raise RunError(
            f"no run has {score} of its clients: `{_shared_main(runs)}` is there, further "
            "scores where the key scores names them, and `whole_test_accuracy` where the "
            "experiment says score-whole-test = true"
        )
    subtracted = labels[0] if baseline is None else baseline
    for label in (subtracted, *placebos):
        if label not in labels:
            raise RunError(f"no experiment {label!r}: there are {'; '.join(labels)}")
    if subtracted in placebos:
        raise RunError(f"{subtracted!r} is the baseline: a placebo is another experiment")
    warnings = repeated + _unfinished(groups) + _different_rounds(runs)
    warnings += partition_warnings(groups) + _left_out(rows)
    keys = keys_that_differ(groups)
    return Comparison(
        rows=rows,
        warnings=tuple(warnings),
        groups=groups,
        evaluations=evaluations,
        baseline=subtracted,
        score=score_of(column),
        keys=keys,
        placebos=tuple(placebos),
    )


def tables(comparison: Comparison) -> list[FittingTable]:
    """Return the rows, and the keys that differ if any, as tables for a rich console."""
    notes = [comparison.legend, *(f"warning: {line}" for line in comparison.warnings)]
    lines = table_lines(comparison)
    console_tables = [console_table(lines, notes, drop=first_to_go(comparison))]
    if comparison.keys:
        lines = [["key that differs", "values, in the order of the rows above"]]
        lines += [[name, " | ".join(values)] for name, values in comparison.keys.items()]
        console_tables.append(console_table(lines, left=(0, 1)))
    return console_tables


def first_to_go(comparison: Comparison) -> list[str]:
    """Return the headings that a narrow terminal leaves out, the first one first."""
    headings = comparison.columns
    return [headings[name] for name in FIRST_TO_GO if name in headings]


def to_latex(comparison: Comparison) -> str:
    """Return the rows as a table of LaTeX, to be used with the package booktabs."""
    table = latex_table(table_lines(comparison))
    return f"% {latex_text(comparison.legend)}\n{table}"


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown: rows, warnings, keys that differ."""
    notes = [comparison.legend, *(f"- warning: {line}" for line in comparison.warnings)]
    text = markdown_table(table_lines(comparison)) + "".join(
        f"\n{markdown_text(note)}\n" for note in notes
    )
    if not comparison.keys:
        return text
    header = ["key that differs", *(row.label for row in comparison.rows)]
    keys = [[name, *values] for name, values in comparison.keys.items()]
    return f"{text}\n{markdown_table([header, *keys], range(len(header)))}"


def by_seed_csv(comparison: Comparison) -> str:
    """Return the metrics of each run as CSV."""
    lines: list[Sequence[object]] = [["label", SEED, *COLUMNS, "partition"]]
    for row in comparison.rows:
        for seed, metrics in row.by_seed.items():
            numbers = [metrics.get(name) for name in COLUMNS]
            cells = ["" if n is None else f"{n:.{2 + row.digits}f}" for n in numbers]
            lines.append([row.label, seed, *cells, row.partitions[seed][:12]])
    return csv_table(lines)


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write ``comparison.md`` and ``by_seed.csv``."""
    atomic_write(folder / "comparison.md", to_markdown(comparison).encode())
    atomic_write(folder / "by_seed.csv", by_seed_csv(comparison).encode())


def _shared_main(runs: Sequence[Run]) -> str:
    """Return the main score of runs; where they differ the first one that all runs have."""
    mains = list(dict.fromkeys(main_score(run.experiment).column for run in runs))
    shared = (
        main for main in mains if all(run.column(f"{main}_mean")[0].size for run in runs)
    )
    return next(shared, mains[0])


def _ranked(
    groups: Sequence[Group], evaluations: int, score: str
) -> tuple[tuple[Row, ...], tuple[Group, ...]]:
    """Return rows and their groups, those whose means are over fewer clients last."""
    rows = [_row(group, evaluations, score) for group in groups]
    largest = max(abs(n.get("mean", 0.0)) for r in rows for n in r.by_seed.values())
    digits = score_of(score).digits(largest)
    rows = [
        replace(row, incomplete=_is_incomplete(row, rows), digits=digits) for row in rows
    ]
    pairs = sorted(zip(rows, groups, strict=True), key=lambda pair: pair[0].incomplete)
    return tuple(row for row, _ in pairs), tuple(group for _, group in pairs)


def _is_incomplete(row: Row, rows: Sequence[Row]) -> bool:
    """Return whether a client has no score that has one in another row on that seed.

    Where no other row has the seed, whether any client has none.
    """
    for seed, scores in row.scores.items():
        if not any(one.short for one in scores):
            continue
        others = [other.scores[seed] for other in rows if seed in other.scores]
        scored = [_clients_with_a_score(other) for other in others]
        if len(others) == 1 or any(
            other - _clients_with_a_score(scores) for other in scored
        ):
            return True
    return False


def _clients_with_a_score(evaluations: Sequence[Scores]) -> set[Client]:
    """Return the clients that have a score at each evaluation."""
    return set.intersection(*(set(one.of) for one in evaluations)) if evaluations else set()


def _row(group: Group, evaluations: int, score: str) -> Row:
    rounds = [run.last_round for run in group.runs]
    scores = {
        run.experiment.get(SEED): run.scores(score, max(evaluations, LAST))
        for run in group.runs
    }
    return Row(
        label=group.label,
        num_seeds=len(group.runs),
        num_rounds=(min(rounds), max(rounds)),
        by_seed={seed: _final_metrics(s, evaluations) for seed, s in scores.items()},
        partitions={run.experiment.get(SEED): partition_of(run) for run in group.runs},
        scores={seed: tuple(s[-evaluations:]) for seed, s in scores.items()},
        test_share=fmean(_test_share(run) for run in group.runs),
    )


def _test_share(run: Run) -> float:
    """Return the test rows per training row of a split that the seed drew, else 0."""
    test, train = (run.number_of_data(f"{part}-rows") for part in ("test", "train"))
    return test / train if run.experiment.get("fresh-test-split") and train else 0.0


def _final_metrics(scores: Sequence[Scores], evaluations: int) -> dict[str, float]:
    """Return one run's metrics by name in COLUMNS, in per cent."""
    reports = [
        fairness_report(one.percent, one.score) for one in scores[-evaluations:] if one.of
    ]
    metrics = {}
    if reports:
        metrics = {
            name: fmean(getattr(report, name) for report in reports)
            for name in OVER_CLIENTS
        }
    means = [fmean(one.percent) for one in scores[-LAST:] if one.of]
    return {**metrics, "last": fmean(means)} if means else metrics


def _left_out(rows: Sequence[Row]) -> list[str]:
    """Return of which runs the numbers leave out clients, and of how many they are."""
    lines = []
    for row in rows:
        for seed, scores in row.scores.items():
            short = [one for one in scores if one.short]
            if short:
                worst = min(short, key=Scores.share)
                more = f" and of fewer than all at {len(short) - 1} more" * (len(short) > 1)
                lines.append(
                    f"{row.label}, seed {seed}: the numbers are of {worst.short} at round "
                    f"{worst.server_round}{more}: the others have no {worst.score.title} "
                    "that counts"
                )
    return lines


def spread(values: Sequence[float], digits: int = 2) -> Spread | None:
    """Return mean and spread of one number per seed, None for no numbers."""
    if not values:
        return None
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, digits)


def _one_per_seed(group: Group, warnings: list[str]) -> Group:
    """Keep the first run of each seed, and note the others in ``warnings``."""
    by_seed: dict[object, Run] = {}
    for run in group.runs:
        first = by_seed.setdefault(run.experiment.get(SEED), run)
        if first is not run:
            warnings.append(
                f"{run.path} repeats the experiment and seed of {first.path}: left out"
            )
    return Group(group.label, tuple(by_seed.values()))


def _unfinished(groups: Sequence[Group]) -> list[str]:
    return [
        f"{run.path} is not finished: its status is {run.manifest.get('status')}"
        for group in groups
        for run in group.runs
        if run.manifest.get("status") != "finished"
    ]


def _different_rounds(runs: Sequence[Run]) -> list[str]:
    counts = {run.last_round for run in runs}
    if len(counts) == 1:
        return []
    return [f"runs end at different rounds, {min(counts)} to {max(counts)}"]


def table_lines(comparison: Comparison) -> list[list[str]]:
    """Return the heading and the cells of the rows."""
    short = any(row.short for row in comparison.rows)
    heads = ["clients"] if short else []
    lines = [["experiment", "seeds", "rounds", *heads, *comparison.columns.values()]]
    for row in comparison.rows:
        fewest, most = row.num_rounds
        lines.append(
            [
                row.label,
                seeds_text(list(row.by_seed)),
                str(most) if fewest == most else f"{fewest} to {most}",
                *([row.short.removesuffix(" clients") or "all"] if short else []),
                *(
                    "–" if (number := row.metrics[name]) is None else str(number)
                    for name in comparison.columns
                ),
            ]
        )
    return lines
