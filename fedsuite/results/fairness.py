"""Collaborative fairness of runs: clients that bring more get more.

A client's contribution is its accuracy alone, in a run of Standalone on the same partition
with the same seed. A score is an accuracy to compare with it: of a model, on test rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedsuite.core.errors import RunError
from fedsuite.core.files import atomic_write
from fedsuite.core.metrics import (
    collaborative_fairness,
    interval_over_clients,
    participation_incentive,
)
from fedsuite.results.compare import spread
from fedsuite.results.groups import METHOD, SEED, Group, group_runs
from fedsuite.results.likeness import partition_of
from fedsuite.results.reader import Client, Run
from fedsuite.results.tables import csv_table, markdown_table

UNDEFINED = "undefined"

TEXTS = (0, 1)
"""Columns of the tables that hold text."""


class Score(NamedTuple):
    """One kind of accuracy per client.

    Parameters
    ----------
    name
        Model and test rows, for tables.
    phase, column
        Place of the accuracy in ``clients.jsonl``.
    alone, examples
        Columns of Standalone's accuracy on the same kind of rows, and of the rows' number.
    """

    name: str
    phase: str
    column: str
    alone: str
    examples: str


_MODELS = (
    ("client's model", "evaluate", ""),
    ("global model", "evaluate", "global_"),
    ("trained model", "train", "trained_"),
)
_ROWS = (
    ("own test rows", "accuracy", "num_examples"),
    ("whole test part", "whole_test_accuracy", "whole_test_examples"),
)

SCORES = tuple(
    Score(f"{model}, {rows}", phase, prefix + alone, alone, examples)
    for model, phase, prefix in _MODELS
    for rows, alone, examples in _ROWS
)

LEGEND = (
    "Accuracies in per cent at the last evaluation. Client's model: what the method gives "
    "a client (its private model, or where it has none the global one). Trained model: "
    "what local training left of the global one, before it was averaged. CF: 100 x Pearson "
    "of these accuracies with Standalone's, over clients; undefined where all clients have "
    "one accuracy. Its interval is Fisher's, for clients drawn as these were, of four at "
    "least: it holds 0 where the accuracies may be unrelated. Incentive: share of clients "
    "that are served no worse than alone."
)


@dataclass(frozen=True)
class Collaboration:
    """Collaborative fairness of one run by one score.

    Parameters
    ----------
    clients
        The clients' ids, in the order of the accuracies.
    alone, together
        Accuracies by client (fractions) of Standalone and of the run.
    cf
        Collaborative fairness; None where undefined.
    interval
        95 % interval of CF; see :func:`~fedsuite.core.metrics.interval_over_clients`.
    """

    seed: object
    clients: tuple[Client, ...]
    alone: tuple[float, ...]
    together: tuple[float, ...]
    cf: float | None
    interval: tuple[float, float] | None

    @property
    def maximum(self) -> float:
        """Accuracy of the best client, in per cent."""
        return 100 * max(self.together)

    @property
    def mean(self) -> float:
        """Plain mean over clients, in per cent."""
        return 100 * fmean(self.together)

    @property
    def incentive(self) -> float:
        """Share of clients with at least Standalone's accuracy."""
        return participation_incentive(self.alone, self.together)


@dataclass(frozen=True)
class FairnessRow:
    """Runs of one experiment with one score, over seeds."""

    label: str
    score: str
    runs: tuple[Collaboration, ...]


def standalone_of(runs: Sequence[Run], alone: Sequence[Run]) -> dict[Path, Run]:
    """Return by a run's path the run of Standalone with its seed and partition.

    Raises
    ------
    RunError
        If there is none, or one of ``alone`` is of another method.
    """
    for run in alone:
        if run.experiment.get(METHOD) != "standalone":
            raise RunError(f"{run.path} is no run of Standalone, but of another method")
    by_draw = {_draw(run): run for run in reversed(alone)}
    for run in runs:
        if _draw(run) not in by_draw:
            raise RunError(
                f"{run.path}: no run of Standalone with its seed and partition was given: "
                "run its experiment with --set method=standalone"
            )
    return {run.path: by_draw[_draw(run)] for run in runs}


def _draw(run: Run) -> tuple[object, str]:
    return run.experiment.get(SEED), partition_of(run)


def fairness_rows(
    runs: Sequence[Run],
    alone: Mapping[Path, Run],
    evaluations: int = 1,
    at_rounds: Mapping[str, int] | None = None,
) -> tuple[FairnessRow, ...]:
    """Return collaborative fairness by experiment and score.

    Parameters
    ----------
    runs
        Runs to score.
    alone
        Run of Standalone by the path of the run that is compared with it.
    evaluations
        Number of last evaluations to average per client.
    at_rounds
        Round after which an experiment counts as ended, by label, for equal time. Default:
        the last round. Standalone always counts to its end.

    Raises
    ------
    RunError
        If a run and its Standalone have different clients, a run lacks the accuracies, or
        no experiment has a label.
    """
    rows = []
    ends = dict(at_rounds or {})
    for group in group_runs(runs):
        group_rows = list(_scored(group, alone, evaluations, ends.pop(group.label, None)))
        if not group_rows:
            raise RunError(f"{group.runs[0].path}: no accuracies per client to compare")
        rows += group_rows
    if ends:
        labels = "; ".join(group.label for group in group_runs(runs))
        raise RunError(f"no experiment {next(iter(ends))!r}: there are {labels}")
    return tuple(rows)


def _scored(
    group: Group, alone: Mapping[Path, Run], evaluations: int, end: int | None
) -> Iterator[FairnessRow]:
    """Yield a row per score that all runs of an experiment have."""
    label = group.label if end is None else f"{group.label} at round {end}"
    for score in SCORES:
        each = [
            _collaboration(run, alone[run.path], score, evaluations, end)
            for run in group.runs
        ]
        complete = [one for one in each if one is not None]
        if len(complete) == len(each):
            yield FairnessRow(label, score.name, tuple(complete))


def _collaboration(
    run: Run, alone: Run, score: Score, evaluations: int, end: int | None
) -> Collaboration | None:
    """Return the fairness of a run by a score, None without the score."""
    theirs = _last_values(run, score.phase, score.column, evaluations, end)
    own = _last_values(alone, "evaluate", score.alone, evaluations)
    sizes = _last_values(run, "evaluate", score.examples, 1, end)
    # A client without test rows has no accuracy to compare.
    own = {client: value for client, value in own.items() if sizes.get(client) != 0}
    if not theirs or not own:
        return None
    if set(theirs) != set(own):
        raise RunError(
            f"{run.path} and {alone.path} have other clients in {score.column}: compare "
            "runs in which all clients are scored"
        )
    tested = [client for client in theirs if sizes.get(client, 0) >= 1]
    if not tested:
        return None
    clients = sorted(tested, key=str)
    x, y = ([values[client] for client in clients] for values in (own, theirs))
    return Collaboration(
        run.experiment.get(SEED),
        tuple(clients),
        tuple(x),
        tuple(y),
        collaborative_fairness(x, y),
        interval_over_clients(x, y),
    )


def _last_values(
    run: Run, phase: str, column: str, evaluations: int, end: int | None = None
) -> dict[Client, float]:
    """Return the mean of each client's last values, for clients with all values."""
    history = run.client_history(phase, column)
    if history and end is not None:
        if end not in history:
            raise RunError(
                f"{run.path}: no {column} at round {end}, the last is at {max(history)}: "
                f"it takes `fedsuite resume {run.path} --num-rounds {end}`, or a run with "
                "evaluate-every = 1"
            )
        history = {r: values for r, values in history.items() if r <= end}
    last = [history[server_round] for server_round in sorted(history)[-evaluations:]]
    if not last:
        return {}
    shared = set.intersection(*map(set, last))
    return {client: fmean(values[client] for values in last) for client in shared}


def over_seeds_table(rows: Sequence[FairnessRow]) -> list[list[str]]:
    """Return heading and cells of the means and spreads over seeds."""
    header = ["experiment", "score", "seeds", "CF", "max", "average", "incentive"]
    return [header, *(_seed_cells(row) for row in rows)]


def by_seed_table(rows: Sequence[FairnessRow]) -> list[list[str]]:
    """Return heading and cells of each run, with intervals."""
    numbers = ["max", "average", "incentive"]
    lines = [["experiment", "score", "seed", "CF", "95 % interval", *numbers]]
    for row in rows:
        for run in row.runs:
            cf = UNDEFINED if run.cf is None else f"{run.cf:.2f}"
            numbers = [f"{n:.2f}" for n in (run.maximum, run.mean, run.incentive)]
            ends = _ends(run.interval)
            lines.append([row.label, row.score, str(run.seed), cf, ends, *numbers])
    return lines


def to_markdown(rows: Sequence[FairnessRow]) -> str:
    """Return both tables and the notes as Markdown."""
    tables = [over_seeds_table(rows), by_seed_table(rows)]
    parts = [markdown_table(lines, TEXTS) for lines in tables]
    return "\n".join([*parts, f"{LEGEND}\n"])


def to_csv(rows: Sequence[FairnessRow]) -> str:
    """Return the accuracies alone and together as CSV, one row per client and run."""
    lines: list[Sequence[object]] = [
        ["label", "score", SEED, "client", "standalone", "federated"]
    ]
    for row in rows:
        for run in row.runs:
            for point in zip(run.clients, run.alone, run.together, strict=True):
                lines.append([row.label, row.score, run.seed, *point])
    return csv_table(lines)


def write_fairness(rows: Sequence[FairnessRow], folder: Path) -> None:
    """Write ``fairness.md`` and ``fairness.csv`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "fairness.md", to_markdown(rows).encode())
    atomic_write(folder / "fairness.csv", to_csv(rows).encode())


def _seed_cells(row: FairnessRow) -> list[str]:
    known = [run.cf for run in row.runs if run.cf is not None]
    fairness = str(spread(known)) if known else UNDEFINED
    if known and len(known) < len(row.runs):
        fairness += f" ({len(row.runs) - len(known)} {UNDEFINED})"
    numbers = [
        str(spread([getattr(run, name) for run in row.runs]))
        for name in ("maximum", "mean", "incentive")
    ]
    return [row.label, row.score, str(len(row.runs)), fairness, *numbers]


def _ends(interval: tuple[float, float] | None) -> str:
    return UNDEFINED if interval is None else "{:.1f} to {:.1f}".format(*interval)
