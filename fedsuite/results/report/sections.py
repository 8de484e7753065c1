"""The page of a report: its sections, in order, with their tables and figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from fedsuite.core.metrics import fairness_report, is_accuracy, tail_words
from fedsuite.core.tasks import SCORES, Score, score_of_column
from fedsuite.data.federated import FederatedData
from fedsuite.messages.records import NEW
from fedsuite.results import paired
from fedsuite.results.compare import Comparison, Spread, compare, table_lines
from fedsuite.results.groups import SEED, Group, group_runs
from fedsuite.results.likeness import seeds_text
from fedsuite.results.paired import Paired
from fedsuite.results.reader import Client, Run
from fedsuite.results.report import figures, run_tables
from fedsuite.results.report.client_figures import client_figures, spread_figure
from fedsuite.results.report.clients import ClientRows, client_rows
from fedsuite.results.report.cost_figures import cost_figures
from fedsuite.results.report.figures import Figure
from fedsuite.results.report.forest import forest_figure
from fedsuite.results.report.values import (
    Cell,
    Table,
    amount,
    cell,
    duration,
    number,
    table,
    words,
)
from fedsuite.results.score import main_score, score_of
from fedsuite.results.summary import last_scores, totals
from fedsuite.results.verdict import network_words, num_clients, verdict

MOST_CLIENTS = 2000
"""Most clients of the table of clients."""

TITLES = {
    "compare": "Comparison",
    "curves": "Curves",
    "clients": "Clients",
    "data": "Who holds what",
    "replies": "Replies that were not used",
    "costs": "Traffic and time",
    "what": "What was run",
    "repeat": "Repeat it",
}
"""Heading of the sections."""

MOST_NAMES = 6
"""Most values of one fact above the fold."""


@dataclass
class Section:
    """A section of the page.

    Parameters
    ----------
    name, title
        Name for links, and heading.
    tables, folded
        Tables that are shown, and tables that the reader unfolds.
    figures
        Number and figure; the number is the figure's place among all of the page.
    notes
        Lines of text.
    commands
        Commands by what they do.
    """

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)
    figures: list[tuple[int, Figure]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.tables, self.folded, self.figures, self.notes, self.commands))


@dataclass(frozen=True)
class View:
    """What stands above the fold of one score.

    Parameters
    ----------
    name
        The score, as readers choose it.
    title
        Heading.
    sentences
        What a comparison shows.
    tiles
        The most important numbers by name.
    """

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    tiles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """A report.

    Parameters
    ----------
    views
        What is shown of each score, by its column; the first is shown at first.
    subtitle
        Second heading.
    facts
        What was run: data, clients, network, ..., by name.
    sections
        The sections that have something to show.
    figures
        All figures, in the order of their numbers.
    """

    views: Mapping[str, View]
    subtitle: str
    facts: Mapping[str, str]
    sections: tuple[Section, ...]
    figures: tuple[Figure, ...]

    @property
    def first(self) -> str:
        """The column of the score that is shown at first."""
        return next(iter(self.views))


def page(runs: Sequence[Run], comparison: Comparison | None = None) -> Page:
    """Return the report of one or more runs, with their comparison."""
    sections = {name: Section(name, title) for name, title in TITLES.items()}
    groups = group_runs(runs)
    if comparison is None and len(runs) > 1:
        comparison = compare([run.path for run in runs])
    first = (
        comparison.score if comparison else score_of(main_score(runs[0].experiment).column)
    )
    views: dict[str, View] = {}
    own: list[Figure] = []
    for score in (first, *_others(runs, first)):
        compared = comparison
        if comparison and score is not first:
            compared = comparison.of_score(score.column)
        views[score.column], of_score = _view(runs, groups, compared, score, sections)
        own += [replace(figure, score=score.column) for figure in of_score]
    # Scores against rounds and costs stand above the losses, and clients below.
    curves = [figure for figure in own if figure.section == "curves"]
    others = [figure for figure in own if figure.section != "curves"]
    all_figures = [*curves, *figures.curve_figures(groups), *others]
    if comparison:
        sections["compare"].folded += key_table(comparison)
        sections["compare"].notes += [f"Warning: {line}" for line in comparison.warnings]
    if len(runs) == 1:
        all_figures += _one(runs[0], client_rows(runs[0], first), sections)
    elif comparison:
        _several(runs, groups, comparison, sections)
    reasons = run_tables.reasons_table(runs)
    if reasons.rows:
        sections["replies"].tables.append(reasons)
    else:
        sections["replies"].notes.append("All replies were used.")
    content = tuple(sections.values()), tuple(all_figures)
    return filled(Page(views, _subtitle(runs, len(groups)), _facts(runs), *content))


def _others(runs: Sequence[Run], first: Score) -> list[Score]:
    """Return the further scores that any run has of its clients, in their usual order."""
    named = {name for run in runs for row in run.rounds for name in row}
    return [
        score_of(score.column)
        for score in SCORES.values()
        if score.column != first.column and f"{score.column}_mean" in named
    ]


def _view(
    runs: Sequence[Run],
    groups: Sequence[Group],
    comparison: Comparison | None,
    score: Score,
    sections: Mapping[str, Section],
) -> tuple[View, list[Figure]]:
    """Return what is shown of a score and its figures, and add its tables to sections."""
    rows = {id(run): client_rows(run, score) for run in runs}
    own = [
        *figures.score_figures(groups, score),
        *cost_figures(groups, score),
        *client_figures(groups, rows, score),
    ]
    if len(runs) == 1:
        own += spread_figure(rows[id(runs[0])])
    title = _title(runs[0])
    sentences: tuple[str, ...] = ()
    if comparison:
        answer = verdict(comparison)
        if len(runs) > 1:
            title, *lines = map(words, answer.lines)
            sentences = tuple(lines)
        own += forest_figure(comparison, answer)
        sections["compare"].tables += [
            replace(each, score=score.column) for each in comparison_tables(comparison)
        ]
    tiles = _tiles(runs[0], score, comparison) if len(runs) == 1 else {}
    return View(score.title, title, sentences, tiles), own


def partition_page(data: FederatedData, title: str) -> Page:
    """Return the page of the rows that each client holds."""
    counts = {"train": data.class_counts(), "test": data.test_class_counts()}
    holding_figures = tuple(figures.holding_figures(counts, data.partition.shifts))
    fingerprint = f"data fingerprint {data.fingerprint}"
    sections = (Section("data", TITLES["data"]),)
    views = {"": View("", words(title))}
    return filled(Page(views, fingerprint, {}, sections, holding_figures))


def filled(empty: Page) -> Page:
    """Return a page with each figure in its section, without sections that hold nothing."""
    sections = {section.name: section for section in empty.sections}
    for place, figure in enumerate(empty.figures):
        sections[figure.section].figures.append((place, figure))
    return replace(empty, sections=tuple(section for section in empty.sections if section))


def _title(run: Run) -> str:
    return words(run.title)


def _subtitle(runs: Sequence[Run], num_groups: int) -> str:
    run = runs[0]
    if len(runs) > 1:
        experiments = f"{num_groups} experiment{'s' * (num_groups > 1)}"
        return f"{len(runs)} runs of {experiments}"
    return words(
        f"seed {run.experiment.get('seed')}, {run_tables.status(run)}: {run.path.name}"
    )


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return what was run, each fact with the values that the runs have."""
    facts: dict[str, Sequence[object]] = {
        "method": [run.experiment.get("method") for run in runs],
        "data set": [run.experiment.get("dataset") for run in runs],
        "clients": [f"{num_clients(run):,}" if num_clients(run) else None for run in runs],
        "network": [network_words(run) for run in runs],
        "rounds": [run.rounds_done for run in runs],
        "seeds": [
            seeds_text(list(dict.fromkeys(run.experiment.get(SEED) for run in runs)))
        ],
        "engine": [run.manifest.get("engine") for run in runs],
        "device": [run.manifest.get("device") for run in runs],
    }
    told = {}
    for name, values in facts.items():
        known = list(dict.fromkeys(words(value) for value in values if value))
        more = [f"{len(known) - MOST_NAMES} more"] if len(known) > MOST_NAMES else []
        if known:
            told[name] = ", ".join([*known[:MOST_NAMES], *more])
    return told


def _tiles(run: Run, score: Score, comparison: Comparison | None) -> dict[str, str]:
    evaluations = [last_scores(run, score.column)]
    if comparison:
        evaluations = [one for of in comparison.rows[0].scores.values() for one in of]
    reports = [fairness_report(one.percent, one.score) for one in evaluations if one.of]
    most = max((report.num_clients for report in reports), default=0)
    numbers = (
        {
            f"mean {score.title}": fmean(report.mean for report in reports),
            tail_words("worst", 10, most): fmean(report.worst_10 for report in reports),
            tail_words("best", 10, most): fmean(report.best_10 for report in reports),
        }
        if reports
        else {}
    )
    tiles = {
        name: f"{value:.{score.digits(value)}f} {score.unit}".rstrip()
        for name, value in numbers.items()
    }
    if short := [one.short for one in evaluations if one.short]:
        tiles["with a score"] = short[-1]
    cost = totals(run)
    return tiles | {
        "traffic": amount(cost["total_bytes_down"] + cost["total_bytes_up"]),
        "time": duration(cost["total_seconds"]),
        "replies not used": f"{cost['total_replies_rejected']:,.0f}",
    }


def _one(run: Run, rows: ClientRows, sections: Mapping[str, Section]) -> list[Figure]:
    """Fill the sections of a single run, and return its own figures."""
    keys, usual = run_tables.key_tables(run)
    sections["what"].tables.append(run_tables.about_table(run))
    others = (keys, usual, run_tables.version_table(run), run_tables.data_table(run))
    sections["what"].folded += [each for each in others if each.rows]
    if rows.names:
        sections["clients"].tables.append(client_table(rows))
    sections["costs"].tables += run_tables.cost_tables(run)
    sections["repeat"].commands.update(run_tables.commands(run))
    counts = {part: run.class_counts(part) for part in figures.PARTS}
    return figures.holding_figures(counts, run.shifts())


def _several(
    runs: Sequence[Run],
    groups: Sequence[Group],
    comparison: Comparison,
    sections: Mapping[str, Section],
) -> None:
    """Fill the sections of several runs."""
    labels = {id(run): group.label for group in groups for run in group.runs}
    sections["what"].tables.append(
        run_tables.runs_table(runs, [labels[id(run)] for run in runs], comparison)
    )
    for group in groups:
        keys, usual = run_tables.key_tables(group.runs[0])
        for key_table in (keys, usual):
            caption = f"{words(group.label)}: {key_table.caption}"
            sections["what"].folded.append(Table(caption, key_table.head, key_table.rows))
    for group in groups:
        for run in group.runs[:1]:
            for what, command in run_tables.commands(run).items():
                sections["repeat"].commands[f"{words(group.label)}: {what}"] = command


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the tables of a comparison: numbers, and paired differences."""
    head, *lines = table_lines(comparison)
    # What is no number to sort by stays below: means over fewer clients are no rank.
    spreads = [
        [None if row.incomplete else row.metrics[name] for name in comparison.columns]
        for row in comparison.rows
    ]
    title = f"{comparison.score.heading} over clients"
    tables = [table(title, head, _valued(lines, spreads), comparison.legend)]
    differences = paired.paired_differences(comparison)
    if any(difference.num_pairs for difference in differences):
        head, *lines = paired.table_lines(differences, comparison)
        means = [
            [each.metrics[name] for name in comparison.columns] for each in differences
        ]
        legend = paired.legend(comparison)
        tables.append(table("Paired differences", head, _valued(lines, means), legend))
    return tables


def _valued(
    lines: Sequence[Sequence[str]], numbers: Sequence[Sequence[Spread | Paired | None]]
) -> list[list[object]]:
    """Return lines whose last cells have the means that a column is sorted by."""
    valued: list[list[object]] = []
    for line, own in zip(lines, numbers, strict=True):
        texts = line[-len(own) :]
        cells = [
            Cell(text, None if each is None else each.mean)
            for text, each in zip(texts, own, strict=True)
        ]
        counts = [int(t) if t.isdecimal() else t for t in line[1 : -len(own)]]
        valued.append([line[0], *counts, *cells])
    return valued


def key_table(comparison: Comparison) -> list[Table]:
    """Return the table of the keys that differ, if any do."""
    if not comparison.keys:
        return []
    labels = [row.label for row in comparison.rows]
    lines = [[name, *values] for name, values in comparison.keys.items()]
    return [table("Keys that differ", ("key", *labels), lines)]


def client_table(rows: ClientRows) -> Table:
    """Return the clients with their last numbers, the worst served first."""
    score = rows.score
    phases = ("evaluate", NEW, "train")
    columns = [(phase, name) for phase in phases for name in rows.columns(phase)]
    columns.sort(key=lambda item: item != ("evaluate", score.column))
    scores = {client: score.gain(value) for client, value in rows.scores().items()}
    ordered = sorted(rows.names, key=lambda c: (scores.get(c, math.inf), str(c)))
    note = "The last row of each client. A heading sorts by its column."
    if rows.last.get(NEW):
        note += " Clients with numbers under new have never trained."
    if len(ordered) > MOST_CLIENTS:
        half = MOST_CLIENTS // 2
        note += (
            f" Of {len(ordered):,} clients these are the {half:,} worst and best served."
        )
        ordered = ordered[:half] + ordered[-half:]
    head = ("client", *(_heading(*column) for column in columns))
    lines = [[words(c), *(_value(rows, c, *column) for column in columns)] for c in ordered]
    return table("Clients", head, lines, note)


def _score_in(name: str) -> Score | None:
    """Return how a column of the clients' rows is read, where it is a score."""
    known = score_of_column(name) is not None or is_accuracy(name)
    return score_of(name) if known else None


def _heading(phase: str, name: str) -> str:
    title, score = f"{phase} {name}".replace("_", " "), _score_in(name)
    return f"{title} ({score.unit})" if score and score.unit else title


def _value(rows: ClientRows, client: Client, phase: str, name: str) -> object:
    value, score = (
        number(rows.last.get(phase, {}).get(client, {}).get(name)),
        _score_in(name),
    )
    if value is not None and score and score.unit:
        return cell(score.factor * value, 2)
    return value
