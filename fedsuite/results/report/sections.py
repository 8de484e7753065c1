"""The page of a report: its sections, in order, with their tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from fedsuite.core.metrics import fairness_report
from fedsuite.data.federated import FederatedData
from fedsuite.results import paired
from fedsuite.results.compare import ACCURACY, Comparison, compare, table_lines
from fedsuite.results.groups import Group, group_runs
from fedsuite.results.reader import Client, Run
from fedsuite.results.report import figures, run_tables
from fedsuite.results.report.client_figures import client_figures, spread_figure
from fedsuite.results.report.clients import ClientRows, client_rows
from fedsuite.results.report.figures import Figure
from fedsuite.results.report.sum_figures import sum_figures
from fedsuite.results.report.values import (
    Table,
    amount,
    cell,
    duration,
    number,
    per_cent,
    table,
    words,
)
from fedsuite.results.summary import last_scores, totals

MOST_CLIENTS = 2000
"""Most clients of the table of clients."""

TITLES = {
    "what": "What was run",
    "compare": "Comparison",
    "curves": "Curves",
    "clients": "Clients",
    "data": "Who holds what",
    "replies": "Replies that were not used",
    "traffic": "Traffic",
    "time": "Time",
    "repeat": "Repeat it",
}
"""Heading of the sections."""


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
    tiles
        The most important numbers by name.
    sections
        The sections that have something to show.
    figures
        All figures, in the order of their numbers.
    """

    title: str
    subtitle: str
    tiles: Mapping[str, str]
    sections: tuple[Section, ...]
    figures: tuple[Figure, ...]


def page(runs: Sequence[Run], comparison: Comparison | None = None) -> Page:
    """Return the report of one or more runs, with their comparison."""
    sections = {name: Section(name, title) for name, title in TITLES.items()}
    groups = group_runs(runs)
    if comparison is None and len(runs) > 1:
        comparison = compare([run.path for run in runs])
    score = comparison.score if comparison else ACCURACY
    rows = {id(run): client_rows(run, score) for run in runs}
    all_figures = [
        *figures.curve_figures(groups),
        *client_figures(groups, rows, score),
        *sum_figures(groups),
    ]
    if len(runs) == 1:
        all_figures += _one(runs[0], rows[id(runs[0])], sections)
    elif comparison:
        _several(runs, groups, comparison, sections)
    if comparison:
        sections["compare"].tables += comparison_tables(comparison)
        sections["compare"].notes += [f"Warning: {line}" for line in comparison.warnings]
    sections["replies"].tables.append(run_tables.reasons_table(runs))
    if not sections["replies"].tables[0].rows:
        sections["replies"].tables.clear()
        sections["replies"].notes.append("All replies were used.")
    title, subtitle = _headings(runs, groups)
    tiles = _tiles(runs[0], comparison) if len(runs) == 1 else {}
    if tiles:
        tiles["clients"] = f"{len(rows[id(runs[0])].names):,}"
    return _filled(
        Page(title, subtitle, tiles, tuple(sections.values()), tuple(all_figures))
    )


def partition_page(data: FederatedData, title: str) -> Page:
    """Return the page of the rows that each client holds."""
    counts = {"train": data.class_counts(), "test": data.test_class_counts()}
    holding_figures = tuple(figures.holding_figures(counts, data.partition.shifts))
    fingerprint = f"data fingerprint {data.fingerprint}"
    sections = (Section("data", TITLES["data"]),)
    return _filled(Page(words(title), fingerprint, {}, sections, holding_figures))


def _filled(empty: Page) -> Page:
    """Return a page with each figure in its section, without sections that hold nothing."""
    sections = {section.name: section for section in empty.sections}
    for place, figure in enumerate(empty.figures):
        sections[figure.section].figures.append((place, figure))
    return replace(empty, sections=tuple(section for section in empty.sections if section))


def _headings(runs: Sequence[Run], groups: Sequence[Group]) -> tuple[str, str]:
    run = runs[0]
    if len(runs) > 1:
        names = "; ".join(words(group.label) for group in groups[:6])
        more = f" and {len(groups) - 6} more" if len(groups) > 6 else ""
        return f"{len(runs)} runs of {len(groups)} experiments", words(names + more)
    method, dataset = (run.experiment.get(name, "?") for name in ("method", "dataset"))
    return (
        words(f"{method} on {dataset}"),
        words(
            f"seed {run.experiment.get('seed')}, {run_tables.status(run)}: {run.path.name}"
        ),
    )


def _tiles(run: Run, comparison: Comparison | None) -> dict[str, str]:
    evaluations = [last_scores(run, ACCURACY)]
    if comparison:
        evaluations = [one for of in comparison.rows[0].scores.values() for one in of]
    reports = [fairness_report(one.percent) for one in evaluations if one.of]
    tiles = {}
    if reports:
        tiles = {
            "mean accuracy": f"{fmean(r.mean for r in reports):.1f} %",
            "worst 10 %": f"{fmean(r.worst_10 for r in reports):.1f} %",
            "best 10 %": f"{fmean(r.best_10 for r in reports):.1f} %",
        }
    if short := [one.short for one in evaluations if one.short]:
        tiles["with an accuracy"] = short[-1]
    cost = totals(run)
    return tiles | {
        "rounds": f"{run.last_round:,}",
        "clients": "",
        "traffic": amount(cost["total_bytes_down"] + cost["total_bytes_up"]),
        "time": duration(cost["total_seconds"]),
        "replies not used": f"{cost['total_replies_rejected']:,.0f}",
    }


def _one(run: Run, rows: ClientRows, sections: Mapping[str, Section]) -> list[Figure]:
    """Fill the sections of a single run, and return its own figures."""
    keys, usual = run_tables.key_tables(run)
    sections["what"].tables += [run_tables.about_table(run), keys]
    others = (usual, run_tables.version_table(run), run_tables.data_table(run))
    sections["what"].folded += [each for each in others if each.rows]
    if rows.names:
        sections["clients"].tables.append(client_table(rows))
    for name, cost_table in run_tables.cost_tables(run).items():
        sections[name].tables.append(cost_table)
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
    """Return the tables of a comparison: numbers, paired differences, differing keys."""
    head, *lines = table_lines(comparison)
    tables = [table("Accuracy over clients", head, lines, comparison.legend)]
    differences = paired.paired_differences(comparison)
    if any(difference.num_pairs for difference in differences):
        head, *lines = paired.table_lines(differences)
        legend = paired.legend(comparison.baseline)
        tables.append(table("Paired differences", head, lines, legend))
    if comparison.keys:
        labels = [row.label for row in comparison.rows]
        lines = [[name, *values] for name, values in comparison.keys.items()]
        tables.append(table("Keys that differ", ("key", *labels), lines))
    return tables


def client_table(rows: ClientRows) -> Table:
    """Return the clients with their last numbers, the worst served first."""
    columns = [(p, name) for p in ("evaluate", "train") for name in rows.columns(p)]
    columns.sort(key=lambda item: item != ("evaluate", "accuracy"))
    accuracies = rows.accuracies()
    ordered = sorted(rows.names, key=lambda c: (accuracies.get(c, 2.0), str(c)))
    note = "The last row of each client. A heading sorts by its column."
    if len(ordered) > MOST_CLIENTS:
        half = MOST_CLIENTS // 2
        note += (
            f" Of {len(ordered):,} clients these are the {half:,} worst and best served."
        )
        ordered = ordered[:half] + ordered[-half:]
    head = ("client", *(_heading(*column) for column in columns))
    lines = [[words(c), *(_value(rows, c, *column) for column in columns)] for c in ordered]
    return table("Clients", head, lines, note)


def _heading(phase: str, name: str) -> str:
    title = f"{phase} {name}".replace("_", " ")
    return f"{title} (%)" if "accuracy" in name else title


def _value(rows: ClientRows, client: Client, phase: str, name: str) -> object:
    value = number(rows.last.get(phase, {}).get(client, {}).get(name))
    if "accuracy" in name:
        return cell(per_cent(value), None if value is None else 2)
    return cell(value)
