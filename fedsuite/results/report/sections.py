"""The page of a report: its sections, in order, with their tables and figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from fedsuite.core.metrics import fairness_report, is_accuracy
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
from fedsuite.results.report.cost_figures import cost_figures, unused_figure
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
from fedsuite.results.score import Score, score_of
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
class Page:
    """A report.

    Parameters
    ----------
    title, subtitle
        Headings.
    sentences
        What a comparison shows.
    facts
        What was run: data, clients, network, ..., by name.
    tiles
        The most important numbers by name.
    sections
        The sections that have something to show.
    figures
        All figures, in the order of their numbers.
    """

    title: str
    subtitle: str
    sentences: tuple[str, ...]
    facts: Mapping[str, str]
    tiles: Mapping[str, str]
    sections: tuple[Section, ...]
    figures: tuple[Figure, ...]


def page(runs: Sequence[Run], comparison: Comparison | None = None) -> Page:
    """Return the report of one or more runs, with their comparison."""
    sections = {name: Section(name, title) for name, title in TITLES.items()}
    groups = group_runs(runs)
    if comparison is None and len(runs) > 1:
        comparison = compare([run.path for run in runs])
    score = comparison.score if comparison else score_of()
    rows = {id(run): client_rows(run, score) for run in runs}
    curves = figures.curve_figures(groups)
    # The score against costs stands beside the score against rounds, above the losses.
    all_figures = [
        *curves[:2],
        *cost_figures(groups, score),
        *curves[2:],
        *client_figures(groups, rows, score),
        *unused_figure(groups),
    ]
    title, subtitle = _headings(runs, len(groups))
    sentences: tuple[str, ...] = ()
    if comparison:
        answer = verdict(comparison)
        if len(runs) > 1:
            title, *lines = map(words, answer.lines)
            sentences = tuple(lines)
        all_figures += forest_figure(comparison, answer)
        sections["compare"].tables += comparison_tables(comparison)
        sections["compare"].folded += key_table(comparison)
        sections["compare"].notes += [f"Warning: {line}" for line in comparison.warnings]
    if len(runs) == 1:
        all_figures += _one(runs[0], rows[id(runs[0])], sections)
    elif comparison:
        _several(runs, groups, comparison, sections)
    reasons = run_tables.reasons_table(runs)
    if reasons.rows:
        sections["replies"].tables.append(reasons)
    else:
        sections["replies"].notes.append("All replies were used.")
    tiles = _tiles(runs[0], score, comparison) if len(runs) == 1 else {}
    filled = tuple(sections.values()), tuple(all_figures)
    return _filled(Page(title, subtitle, sentences, _facts(runs), tiles, *filled))


def partition_page(data: FederatedData, title: str) -> Page:
    """Return the page of the rows that each client holds."""
    counts = {"train": data.class_counts(), "test": data.test_class_counts()}
    holding_figures = tuple(figures.holding_figures(counts, data.partition.shifts))
    fingerprint = f"data fingerprint {data.fingerprint}"
    sections = (Section("data", TITLES["data"]),)
    return _filled(Page(words(title), fingerprint, (), {}, {}, sections, holding_figures))


def _filled(empty: Page) -> Page:
    """Return a page with each figure in its section, without sections that hold nothing."""
    sections = {section.name: section for section in empty.sections}
    for place, figure in enumerate(empty.figures):
        sections[figure.section].figures.append((place, figure))
    return replace(empty, sections=tuple(section for section in empty.sections if section))


def _headings(runs: Sequence[Run], num_groups: int) -> tuple[str, str]:
    run = runs[0]
    if len(runs) > 1:
        experiments = f"{num_groups} experiment{'s' * (num_groups > 1)}"
        return "", f"{len(runs)} runs of {experiments}"
    method, dataset = (run.experiment.get(name, "?") for name in ("method", "dataset"))
    return words(f"{method} on {dataset}"), words(
        f"seed {run.experiment.get('seed')}, {run_tables.status(run)}: {run.path.name}"
    )


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return what was run, each fact with the values that the runs have."""
    facts: dict[str, Sequence[object]] = {
        "method": [run.experiment.get("method") for run in runs],
        "data set": [run.experiment.get("dataset") for run in runs],
        "clients": [f"{num_clients(run):,}" if num_clients(run) else None for run in runs],
        "network": [network_words(run) for run in runs],
        "rounds": [
            f"{run.last_round} of {run.experiment.get('num-rounds', '?')}" for run in runs
        ],
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
    reports = [fairness_report(one.percent) for one in evaluations if one.of]
    tiles = {}
    if reports:
        unit = f" {score.unit}".rstrip()
        tiles = {
            f"mean {score.name}": f"{fmean(r.mean for r in reports):.1f}{unit}",
            "worst 10 %": f"{fmean(r.worst_10 for r in reports):.1f}{unit}",
            "best 10 %": f"{fmean(r.best_10 for r in reports):.1f}{unit}",
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
    return [
        *spread_figure(rows),
        *figures.holding_figures(
            {part: run.class_counts(part) for part in figures.PARTS}, run.shifts()
        ),
    ]


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
    spreads = [
        [row.metrics[name] for name in comparison.columns] for row in comparison.rows
    ]
    title = f"{comparison.score.name.capitalize()} over clients"
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
    head = ("client", *(_heading(score, *column) for column in columns))
    lines = [[words(c), *(_value(rows, c, *column) for column in columns)] for c in ordered]
    return table("Clients", head, lines, note)


def _is_scaled(score: Score, name: str) -> bool:
    return name == score.column or is_accuracy(name)


def _heading(score: Score, phase: str, name: str) -> str:
    title = f"{phase} {name}".replace("_", " ")
    return f"{title} ({score.unit})" if score.unit and _is_scaled(score, name) else title


def _value(rows: ClientRows, client: Client, phase: str, name: str) -> object:
    value = number(rows.last.get(phase, {}).get(client, {}).get(name))
    if value is not None and _is_scaled(rows.score, name):
        return cell(rows.score.scale * value, 2)
    return value
