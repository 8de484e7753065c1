"""The page of a leaderboard, a function of the suite and two tables.

``finals.csv`` has a line per final run, ``tuning.csv`` one per trial. The page can be
written again from them without the runs.
"""

import csv
import io
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from fedsuite.core.errors import ConfigError
from fedsuite.core.files import atomic_write
from fedsuite.core.registry import METHODS
from fedsuite.core.text import read_text
from fedsuite.results.compare import spread
from fedsuite.results.tables import markdown_table
from fedsuite.strategies import load_strategy
from fedsuite.sweeps.trials import LAST
from fedsuite.sweeps.tuning_page import meaning, number
from simulations.leaderboard.scores import (
    LEAST,
    MEASURES,
    Final,
    Row,
    Tried,
    Verdict,
    noise_floor,
    own_model,
    verdicts,
)
from simulations.leaderboard.suite import Problem, Suite

FINALS = "finals.csv"
TUNING = "tuning.csv"

Line = TypeVar("Line", Final, Tried)

_WIDTH = 100

_HEADINGS = {"mean": "accuracy", "worst_10": "worst 10 %", "variance": "variance"}


def write_tables(folder: Path, finals: Sequence[Final], tried: Sequence[Tried]) -> None:
    """Write ``finals.csv`` and ``tuning.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind, lines in ((FINALS, Final, finals), (TUNING, Tried, tried)):
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [f.name for f in fields(kind)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _cell(v) for k, v in asdict(line).items()} for line in lines)
        atomic_write(folder / name, text.getvalue().encode())


def kept_lines(
    path: Path, kind: type[Line], replaced: Collection[tuple[str, str]]
) -> list[Line]:
    """Return the lines of a table whose problem and method are not replaced.

    No line where there is no table yet.
    """
    lines = read_table(path, kind) if path.exists() else []
    return [line for line in lines if (line.problem, line.method) not in replaced]


def in_order(suite: Suite, lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a suite's problems and methods, in the suite's order."""
    pairs = [(p.name, c.name) for p in suite.problems for c in p.contenders]
    places = {pair: place for place, pair in enumerate(pairs)}
    mine = [line for line in lines if (line.problem, line.method) in places]
    return sorted(mine, key=lambda line: places[line.problem, line.method])


def read_table(path: Path, kind: type[Line]) -> list[Line]:
    """Return the lines of one of the tables.

    Raises
    ------
    ConfigError
        If the file cannot be read as such a table.
    """
    try:
        text = io.StringIO(read_text(path), newline="")
        return [_line(kind, cells) for cells in csv.DictReader(text)]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a table: {error}") from error


def _line(kind: type[Line], cells: Mapping[str, str]) -> Line:
    parse: dict[Any, Any] = {
        bool: lambda text: text == "True",
        int: int,
        float: float,
        str: str,
    }
    known = [f for f in fields(kind) if f.name in cells or f.default is MISSING]
    return kind(**{f.name: parse[f.type](cells[f.name]) for f in known})


def _cell(value: object) -> object:
    return f"{value:.8g}" if isinstance(value, float) else value


def write_page(
    folder: Path,
    suite: Suite,
    finals: Sequence[Final],
    tried: Sequence[Tried],
    command: str,
) -> None:
    """Write the page, ``README.md``, of the problems that have lines in the tables."""
    tables = tables_of(suite, finals, tried)
    parts = [_introduction(suite, tables, command)]
    parts += [_section(suite, problem, rows) for problem, rows in tables]
    atomic_write(folder / "README.md", "\n".join(parts).encode())


def tables_of(
    suite: Suite, finals: Sequence[Final], tried: Sequence[Tried]
) -> list[tuple[Problem, list[Row]]]:
    """Return the problems that have lines in the tables, each with its rows."""
    tables = [(problem, rows_of(problem, finals, tried)) for problem in suite.problems]
    return [(problem, rows) for problem, rows in tables if rows]


def rows_of(problem: Problem, finals: Sequence[Final], tried: Sequence[Tried]) -> list[Row]:
    """Return a problem's rows, of the contenders that were tuned."""
    rows = []
    for contender in problem.contenders:
        mine = [t for t in tried if (t.problem, t.method) == (problem.name, contender.name)]
        runs = {
            f.seed: f
            for f in finals
            if (f.problem, f.method) == (problem.name, contender.name)
        }
        if mine:
            failures = len(problem.seeds) - len(runs)
            fresh = bool(problem.base["fresh-test-split"])
            own = own_model(contender)
            rows.append(Row(contender.name, own, tuple(mine), runs, failures, fresh))
    return rows


_RULES = """
All methods have equally many trials per problem: learning rates of one ladder, beyond its
end where that is best, then rates around the best one with the method's own keys drawn. The
best trial by {objective}, of the clients' validation rows and over the tuning's seeds,
is trained on fresh seeds. The tables show test rows, mean of the last {last} evaluations.

Each seed draws training, validation and test rows, partition and initial model anew. A test
row of one seed may have been a validation row of the tuning's seeds, alike for all methods.

A row speaks for new draws from this data under this set-up. It says nothing of other data.

A difference is taken seed by seed from the problem's baseline for methods that score one
shared model, and from its baseline for those that score each client's own. Its first
interval is a 95 % t interval over seeds, and speaks of these seeds. The corrected one
(Nadeau and Bengio, 2003) allows for the rows that the seeds' splits share. **Bold** is a
difference whose corrected p-value is below 0.05 after Holm's correction over the problem's
rows, whose mean is above {least} points, and whose corrected interval lies outside the
placebos' spread, the largest mean difference of a placebo from the method that it imitates.

Suite `{name}`, content {digest}.
"""


def _introduction(
    suite: Suite, tables: Sequence[tuple[Problem, list[Row]]], command: str
) -> str:
    rules = _RULES.format(
        objective=meaning(f"accuracy-{suite.objective}"),
        last=LAST,
        least=LEAST,
        name=suite.name,
        digest=suite.digest,
    )
    paragraphs = [textwrap.fill(rule.strip(), _WIDTH) for rule in rules.split("\n\n")]
    whole = [*paragraphs, f"    {command}"]
    return "\n".join(["# Leaderboard", "", choices(suite, tables), "\n\n".join(whole)])


_FIRST = (
    "`standalone` until it converges, and `fedavg-ft`",
    "",
    "if neither is beaten on your validation rows, stop",
    "",
)

_MARKS = "<!-- choices: begin -->\n", "<!-- choices: end -->"


def with_choices(text: str, table: str) -> str:
    """Return a page with the table of :func:`choices` between its two marks.

    Raises
    ------
    ConfigError
        If the page lacks a mark.
    """
    before, begin, rest = text.partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    if not begin or not end:
        raise ConfigError("expected a page with the marks of the choices: add both")
    return f"{before}{begin}{table}{end}{after}"


def choices(suite: Suite, tables: Sequence[tuple[Problem, list[Row]]]) -> str:
    """Return what to take for each problem, as the table that README has.

    The reference is the strongest on test rows of training alone, fine-tuning and FedAvg.
    A method is named where it is seen above that, and else the reference.
    """
    lines = [["clients", "models", "take", "accuracy", "it gains", "a client's costs"]]
    lines.append(["any", "any", *_FIRST])
    for problem, rows in tables:
        ended = [row for row in rows if row.finals]
        own = {problem.baseline, *problem.own_baselines}
        for kind, names, candidates in (
            ("one for all", {problem.baseline}, [r for r in ended if not r.own_model]),
            ("one each", own, ended),
        ):
            references = [row for row in candidates if row.name in names]
            if references:
                cells = _choice(suite, references, candidates)
                lines.append([problem.title, kind, *cells])
    return markdown_table(lines, range(6))


def _choice(suite: Suite, references: list[Row], rows: list[Row]) -> list[str]:
    strongest = max(references, key=lambda row: fmean(row.values("mean")))
    noise = noise_floor(rows, suite.placebos, "mean")
    both = {False: strongest, True: strongest}
    seen = {
        name: verdict.difference
        for name, verdict in verdicts(rows, both, "mean", noise).items()
        if verdict.seen and verdict.difference.mean > 0
    }
    best = max(seen, key=lambda name: seen[name].mean, default=strongest.name)
    others = sum(row.name not in suite.placebos for row in rows) - len(references)
    said = f"none of {others} others is seen above it"
    if best in seen:
        said = f"{seen[best].intervals} over `{strongest.name}`"
    row = next(row for row in rows if row.name == best)
    epochs, megabytes = (fmean(row.values(m)) for m in ("epochs", "client_megabytes"))
    costs = f"{epochs:.3g} epochs, {megabytes:.2g} MB"
    return [f"`{best}`", f"{fmean(row.values('mean')):.1f}", said, costs]


def baselines_of(problem: Problem, rows: list[Row]) -> dict[bool, Row] | None:
    """Return the baselines of shared models (False) and of clients' own (True).

    The latter is that of the candidates which has the best validation score. None where a
    candidate has no row yet.
    """
    named = {row.name: row for row in rows}
    if not {problem.baseline, *problem.own_baselines} <= named.keys():
        return None
    own = max((named[name] for name in problem.own_baselines), key=lambda r: r.best.score)
    return {False: named[problem.baseline], True: own}


def verdicts_of(
    suite: Suite, problem: Problem, rows: list[Row], measure: str
) -> dict[str, Verdict]:
    """Return the verdict on each row of a problem; none where a baseline has no row."""
    baselines = baselines_of(problem, rows)
    if baselines is None:
        return {}
    noise = noise_floor(rows, suite.placebos, measure)
    return verdicts(rows, baselines, measure, noise)


def _section(suite: Suite, problem: Problem, rows: list[Row]) -> str:
    """Return a problem's heading and its tables."""
    settings = ", ".join(f"{k} = {v}" for k, v in problem.base.items() if k != "report")
    seeds, tuned = (", ".join(map(str, n)) for n in (problem.seeds, problem.tuning_seeds))
    parts = [
        f"{problem.trials} trials per method, each on seeds {tuned}. Final seeds {seeds}.",
        *_facts(suite, problem, rows),
        f"Settings: {settings}.",
    ]
    text = textwrap.fill(" ".join(parts), _WIDTH, break_on_hyphens=False)
    lines = [f"## {problem.title}", "", text, ""]
    lines += [_quality(suite, problem, rows), _cost(rows), _readings(problem, rows)]
    return "\n".join(lines)


def _facts(suite: Suite, problem: Problem, rows: list[Row]) -> Iterator[str]:
    """Yield sentences on a problem's clients, baselines and noise."""
    finals = [final for row in rows for final in row.finals.values() if final.clients]
    if finals:
        least = min(final.fewest_test_rows for final in finals)
        most = max(final.most_test_rows for final in finals)
        yield f"A client has {least} to {most} test rows."
    baselines = baselines_of(problem, rows)
    if baselines is None:
        return
    yield (
        f"Baselines `{baselines[False].name}` of shared models and "
        f"`{baselines[True].name}` of clients' own."
    )
    spreads = {m: noise_floor(rows, suite.placebos, m) for m in MEASURES}
    for own, kind in ((False, "shared"), (True, "own")):
        if any(row.name in suite.placebos and row.own_model == own for row in rows):
            floors = [f"{_heading(problem, m)} {spreads[m][own]:.2f}" for m in MEASURES]
            yield f"The placebos' spread, {kind} models: {', '.join(floors)}."


def _heading(problem: Problem, measure: str) -> str:
    return problem.worst if measure == "worst_10" else _HEADINGS[measure]


def _quality(suite: Suite, problem: Problem, rows: list[Row]) -> str:
    header = ["method", "model", "accuracy", "minus baseline", "corrected"]
    header += [problem.worst, "minus baseline", "corrected", "variance"]
    verdicts = {measure: verdicts_of(suite, problem, rows, measure) for measure in MEASURES}
    lines = [header]
    for row in sorted(rows, key=lambda row: -fmean(row.values("mean") or [-1])):
        cells = [row.name, "own" if row.own_model else "shared"]
        for measure in ("mean", "worst_10"):
            cells += [str(spread(row.values(measure)) or "–")]
            cells += _difference(verdicts[measure].get(row.name))
        lines.append([*cells, str(spread(row.values("variance")) or "–")])
    return markdown_table(lines, (0, 1))


def _difference(verdict: Verdict | None) -> tuple[str, str]:
    """Return the difference with its t interval, and the corrected interval."""
    if verdict is None:
        return "", ""
    plain, _, corrected = verdict.difference.intervals.partition(", corrected ")
    return (f"**{plain}**" if verdict.seen else plain), corrected


def _readings(problem: Problem, rows: list[Row]) -> str:
    """Return notes on rows whose method is not to the letter its paper's."""
    notes = []
    for contender in problem.contenders:
        reading = load_strategy(METHODS[str(contender.fixed["method"])]).READING
        if reading and any(row.name == contender.name for row in rows):
            notes.append(f"- `{contender.name}`: {reading}")
    return "\n".join([*notes, ""] if notes else notes)


def _cost(rows: list[Row]) -> str:
    header = ["method", "values", "untuned", "tuned", "learnt", "local epochs a client"]
    header += [
        "MB a client",
        "CPU s",
        "at equal MB",
        "at equal CPU",
        "never trained",
        "failed",
    ]
    unscored = any(any(row.values("unscored")) for row in rows)
    header += ["without accuracy"] * unscored
    lines = [header]
    for row in rows:
        learnt = sum(tried.learnt for tried in row.tried)
        cells = [
            row.name,
            row.best.values,
            number(row.tried[0].score),
            number(row.best.score),
        ]
        cells.append(f"{learnt} of {len(row.tried)}")
        costs = ("epochs", "client_megabytes", "seconds")
        for measure in (*costs, "at_equal_megabytes", "at_equal_seconds"):
            cells.append(number(fmean(row.values(measure))) if row.finals else "–")
        untrained = fmean(row.values("untrained")) if row.finals else 0.0
        cells += [f"{untrained:g}", str(row.failures)]
        without = fmean(row.values("unscored")) if row.finals else 0.0
        lines.append([*cells, *[f"{without:g}"] * unscored])
    return markdown_table(lines, (0, 1))
