"""A page per method: idea, equations, keys, what it sends, what it costs, how it does."""

import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from method_costs import Sent, measured
from method_figures import Line, draw
from method_liars import one_liar
from repository_pages import ROOT
from restructured import markdown

from fedsuite.core.keys import Key, Value, toml_text
from fedsuite.core.registry import METHODS, Method
from fedsuite.experiment.key_catalog import keys_of
from fedsuite.results.tables import markdown_table
from fedsuite.strategies import load_strategy
from fedsuite.strategies.decomposition.filter_decomposition import FilterDecomposition
from simulations.leaderboard.page import (
    FINALS,
    TUNING,
    baselines_of,
    read_table,
    rows_of,
    verdicts_of,
)
from simulations.leaderboard.scores import MEASURES, Final, Row, Tried, Verdict
from simulations.leaderboard.suite import Problem, Suite, read_suite

BOARD = ROOT / "simulations" / "leaderboard"
IDEAS = ROOT / "docs" / "ideas.toml"
EQUATIONS = ROOT / "docs" / "equations.toml"

FAMILIES = {
    "averaging": "Averages of models",
    "drift": "Against drift between clients",
    "fair": "Fair to badly served clients",
    "personal": "A model for each client",
    "reward": "Rewards by contribution",
    "distillation": "Outputs or features travel, not weights",
    "decomposition": "Factored layers",
}
"""Title of each family of strategies."""

REPRODUCED = {
    "fedeba": "fedeba",
    "fedeba-plus": "fedeba",
    "prac-fedeba-plus": "fedeba",
    "fedal": "fedal",
    "fedakd": "fedakd",
    "filter-decomposition": "decomposition",
}
"""Page of results of the paper that brought a method."""

_NORMALISED = ("fedbn",)
"""Methods that are another one on a network without batch normalisation."""

_ELSEWHERE = re.compile(r":mod:`(fedsuite\.strategies\.[\w.]+)`")
_TITLES = {"mean": "mean accuracy", "worst_10": "worst 10 %", "variance": "variance"}


@dataclass(frozen=True)
class Page:
    """What a page is about.

    Parameters
    ----------
    name
        Name of the method, and of the page.
    title
        Heading.
    values
        Keys that switch the method on.
    strategy
        Class of the server's side, or of the layer around it.
    client
        Path of the client's class.
    paper
        Citation in one line.
    keys
        Keys of its own.
    """

    name: str
    title: str
    values: Mapping[str, Value]
    strategy: type
    client: str
    paper: str
    keys: Sequence[Key]


def _page(method: Method) -> Page:
    strategy = load_strategy(method)
    # The quickstart names a network, which a method's own default does not replace.
    network = {key: value for key, value in strategy.DEFAULTS.items() if key == "model"}
    if method.name in _NORMALISED:
        network["model"] = "cnn-fedakd"
    return Page(
        method.name,
        strategy.__name__,
        {"method": method.name, **network},
        strategy,
        f"fedsuite.clients.{method.client}",
        method.paper,
        strategy.method_keys(),
    )


def _decomposition() -> Page:
    """Return the page of a layer around methods: its keys are of another kind."""
    return Page(
        "filter-decomposition",
        "FilterDecomposition",
        {"method": "fedavg", "model": "cnn-fedakd", "decomposition": True},
        FilterDecomposition,
        "fedsuite.clients.decomposition.filter_decomposition.DecomposedClient",
        "Chen & Qiu, ICML 2025, arXiv:2503.08652",
        keys_of("decomposition", "true"),
    )


def pages_by_family() -> dict[str, list[Page]]:
    """Return the pages of all methods, by family of strategies."""
    families: dict[str, list[Page]] = {}
    for method in METHODS.ours.values():
        family = method.strategy.partition(".")[0]
        families.setdefault(family, []).append(_page(method))
    families["decomposition"].append(_decomposition())
    return families


def write_methods(folder: Path) -> None:
    """Write a page per method, and one that lists them, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    families = pages_by_family()
    for page in (page for pages in families.values() for page in pages):
        (folder / f"{page.name}.md").write_text(written(page, folder))
    for family, pages in families.items():
        (folder / f"family-{family}.md").write_text(_family(family, pages))
    (folder / "index.md").write_text(_listed(families))


def _listed(families: Mapping[str, Sequence[Page]]) -> str:
    """Return the page that lists all methods."""
    parts = [_METHODS]
    for family, pages in families.items():
        parts.append(f"## {FAMILIES[family]}\n\n{_table(pages)}")
    names = "\n".join(f"family-{family}" for family in families)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```\n")
    return "\n".join(parts)


def _family(family: str, pages: Sequence[Page]) -> str:
    """Return a family's page; the sidebar has its methods by the command line's names."""
    names = "\n".join(f"{page.name} <{page.name}>" for page in pages)
    title = f"# {FAMILIES[family]}\n\n{_table(pages)}"
    return f"{title}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def _table(pages: Sequence[Page]) -> str:
    lines = [["method", "what it does", "paper", "measured"]]
    for page in pages:
        name = f"[{page.name}]({page.name}.md)"
        lines.append([name, _summary(page.strategy), page.paper, in_short(page.name)])
    # A table of texts has no links; these are ours.
    return markdown_table(lines, (0, 1, 2, 3)).replace("]\\(", "](")


def written(page: Page, folder: Path) -> str:
    """Return the page of a method."""
    strategy = _role("strategies", page.strategy.__name__)
    client = _role("clients", page.client.rpartition(".")[2])
    switched = " ".join(
        f"--set {name}={_shell(value)}" for name, value in page.values.items()
    )
    return "\n".join(
        [
            f"# {page.title}",
            "",
            _ideas().get(page.name) or _summary(page.strategy),
            "",
            f"*{page.paper}.* {strategy} and {client}.",
            "",
            f"    fedsuite run simulations/quickstart.toml {switched}",
            "",
            "## Results",
            "",
            _results(page, folder),
            "## Equations and deviations",
            "",
            typeset(page.name),
            _rest(_explained(page.strategy.__module__)),
            "",
            "## Keys",
            "",
            _keys(page),
            "## One dishonest client",
            "",
            one_liar(page.name) or "Nobody has measured what one can do.\n",
            "## What it needs and what it sends",
            "",
            _sent(page),
        ]
    )


def _role(side: str, name: str) -> str:
    return f"{{py:class}}`~fedsuite.{side}.{name}`"


def _shell(value: Value) -> str:
    return toml_text(value).strip('"')


@cache
def _ideas() -> dict[str, str]:
    return tomllib.loads(IDEAS.read_text())


@cache
def _equations() -> dict[str, Any]:
    return tomllib.loads(EQUATIONS.read_text())


def typeset(name: str) -> str:
    """Return a method's equations with their signs named, as Markdown; "" for none."""
    entry, common = _equations().get(name), _equations()["common"]
    if entry is None:
        return ""
    parts = [f"$$\n{formula}\n$$\n" for formula in entry["equations"]]
    for line in entry["where"]:
        sign, _, meaning = line.partition(": ")
        parts.append(f"- ${sign}$: {meaning or common[sign]}")
    return "\n".join([*parts, ""])


def _summary(strategy: type) -> str:
    return " ".join((strategy.__doc__ or "").partition("\n\n")[0].split())


def _explained(module: str) -> str:
    """Return the docstring of a module, or of the one that it points to."""
    text = inspect.cleandoc(import_module(module).__doc__ or "")
    elsewhere = _ELSEWHERE.search(text)
    if elsewhere and not re.search("Equation|Objective|=", text):
        return _explained(elsewhere.group(1))
    return text


def _rest(text: str) -> str:
    """Return a module's docstring without its first line, as Markdown."""
    return markdown(text.partition("\n\n")[2] or text)


def _keys(page: Page) -> str:
    strategy = page.strategy
    own = getattr(strategy, "DEFAULTS", {})
    paper = getattr(strategy, "PAPER", {})
    lines = [["key", "default", "allowed", "meaning"]]
    for key in page.keys:
        published = (
            f". The paper: `{toml_text(paper[key.name])}`" if key.name in paper else ""
        )
        default = toml_text(own.get(key.name, key.default))
        lines.append(
            [f"`{key.name}`", f"`{default}`", key.allowed(), f"{key.help}{published}"]
        )
    parts = (
        [markdown_table(lines, (0, 1, 2, 3))]
        if page.keys
        else ["It has no key of its own.\n"]
    )
    changed = [name for name in own if name not in {key.name for key in page.keys}]
    if changed:
        named = ", ".join(f"`{name} = {toml_text(own[name])}`" for name in changed)
        parts.append(f"Its defaults of shared keys: {named}.\n")
    if paper:
        parts.append('`preset = "paper"` brings the values of the paper.\n')
    return "\n".join(parts)


def _sent(page: Page) -> str:
    """Return needs, traffic and work, the latter two as measured."""
    cost = measured(page.values)
    base = measured(
        {**{k: v for k, v in page.values.items() if k == "model"}, "method": "fedavg"}
    )
    needs = getattr(page.strategy, "NEEDS_OF_CLIENT", None)
    parts = [_needs(needs.words if needs else "DecomposedClient")]
    lines = [
        [
            "message",
            "per round",
            "to a client, kB",
            "from a client, kB",
            "numbers from a client",
        ]
    ]
    for kind in cost.down:
        down, up = cost.down[kind], cost.up[kind]
        numbers = ", ".join(f"`{name}`" for name in sorted(up.numbers))
        lines.append([f"`{kind}`", str(down.messages), _arrays(down), _arrays(up), numbers])
    parts.append(markdown_table(lines, (0, 4)))
    share = [
        f"{work / base.training:.2g}"
        for work in (cost.training, cost.evaluation, cost.server)
    ]
    parts.append(
        "Work in multiplications, where a client's training in FedAvg is 1: training "
        f"{share[0]}, evaluation {share[1]}, the server {share[2]}.\n"
    )
    parts.append(_MEASURED.strip())
    return "\n".join(parts)


def _needs(words: str) -> str:
    if words == "nothing":
        return "Any client will do that sends its model and `num-examples`.\n"
    return f"Beside a model and `num-examples` a client must give: {words}.\n"


def _arrays(sent: Sent) -> str:
    cells = [f"`{name}` {size / 1000:.3g}" for name, size in sent.arrays.items() if size]
    return ", ".join(cells) or "–"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


@cache
def _board() -> tuple[Suite, list[tuple[Problem, list[Row]]]]:
    suite = read_suite(BOARD / "suite.toml")
    if not (BOARD / "results" / FINALS).is_file():
        return suite, []
    finals = read_table(BOARD / "results" / FINALS, Final)
    tried = read_table(BOARD / "results" / TUNING, Tried)
    tables = [(problem, rows_of(problem, finals, tried)) for problem in suite.problems]
    return suite, [(problem, rows) for problem, rows in tables if rows]


def outcomes(name: str) -> list[tuple[Problem, str, Verdict | None]]:
    """Return a method's problems on the leaderboard, each with its baseline and verdict."""
    found = []
    for place, (problem, rows) in enumerate(_board()[1]):
        row = next((row for row in rows if row.name == _on_board(name)), None)
        if row is not None and row.finals:
            verdict = _verdicts(place, "mean").get(row.name)
            found.append((problem, _against(problem, rows, row), verdict))
    return found


@cache
def _verdicts(place: int, measure: str) -> dict[str, Verdict]:
    """Return the verdicts on a measure by method, of the problem at a place."""
    suite, tables = _board()
    return dict(verdicts_of(suite, *tables[place], measure))


def in_short(name: str) -> str:
    """Return in a sentence what the leaderboard says of a method's mean accuracy."""
    gains = {"gains on": 0, "loses on": 0, "no difference is seen on": 0, "baseline of": 0}
    for _, against, verdict in outcomes(name):
        if against == _on_board(name):
            gains["baseline of"] += 1
        elif verdict is None or not verdict.seen:
            gains["no difference is seen on"] += 1
        else:
            gains["gains on" if verdict.difference.mean > 0 else "loses on"] += 1
    total = sum(gains.values())
    parts = [f"{words} {count} of {total}" for words, count in gains.items() if count]
    return ", ".join(parts).capitalize() if parts else "Not on the board"


def _on_board(name: str) -> str:
    return "decomposition" if name == "filter-decomposition" else name


def _against(problem: Problem, rows: list[Row], row: Row) -> str:
    """Return the baseline that a method is set against."""
    baselines = baselines_of(problem, rows)
    return baselines[row.own_model].name if baselines else problem.baseline


def _results(page: Page, folder: Path) -> str:
    """Return a method's rows of the leaderboard, and draw them."""
    name = _on_board(page.name)
    paper = REPRODUCED.get(page.name)
    link = (
        f"[The paper's comparisons, run again](../results/{paper}.md).\n" if paper else ""
    )
    table = [["problem", "model", "against", *_TITLES.values(), "MB", "CPU s"]]
    told, drawn = [_told(p, name, a, v) for p, a, v in outcomes(page.name)], []
    for place, (problem, rows) in enumerate(_board()[1]):
        row = next((row for row in rows if row.name == name and row.finals), None)
        if row is None:
            continue
        against = _against(problem, rows, row)
        found = {m: _verdicts(place, m).get(name) for m in MEASURES}
        cells = [problem.title, "own" if row.own_model else "shared", f"`{against}`"]
        cells += [_cell(row, measure, found[measure]) for measure in MEASURES]
        cells += [_three_digits(fmean(row.values(m))) for m in ("megabytes", "seconds")]
        table.append(cells)
        mean, worst = found["mean"], found["worst_10"]
        if mean and worst:
            drawn.append(Line(problem.title, against, mean.difference, worst.difference))
    if not told:
        return f"The leaderboard has no run of this method.\n\n{link}"
    parts = ["\n".join(told), ""]
    if drawn:
        draw(drawn, folder / f"{page.name}.svg")
        parts += [f"![Differences from the baselines, with intervals]({page.name}.svg)", ""]
    suite_file = "simulations/leaderboard/suite.toml"
    command = f"    python -m simulations.leaderboard {suite_file} --methods {name}"
    parts += [markdown_table(table, (0, 1, 2)), _CELLS.strip(), "", command, "", link]
    return "\n".join(parts)


def _told(problem: Problem, name: str, against: str, verdict: Verdict | None) -> str:
    """Return the verdict on the mean accuracy in a sentence."""
    if name == against:
        return f"- **{problem.title}.** The baseline."
    if verdict is None or not verdict.seen:
        return f"- **{problem.title}.** No difference from `{against}` is above the noise."
    better = "gains" if verdict.difference.mean > 0 else "loses"
    points = f"{abs(verdict.difference.mean):.1f} points of mean accuracy"
    return f"- **{problem.title}.** It {better} {points} on `{against}`."


def _cell(row: Row, measure: str, verdict: Verdict | None) -> str:
    mean = f"{fmean(row.values(measure)):.1f}"
    if verdict is None:
        return mean
    difference = verdict.difference.intervals
    return f"{mean}, **{difference}**" if verdict.seen else f"{mean}, {difference}"


_METHODS = """
# Methods

**Each page has a method's idea, results, equations, keys, what one liar can do, and what is
sent.** The last column counts problems of the [leaderboard](../results/leaderboard.md): the
mean accuracy beside that of a baseline, FedAvg, fine-tuning or training alone.
""".lstrip()

_CELLS = """
Each cell has the mean over seeds and the difference from the baseline with its 95 %
interval. All methods were tuned alike, on validation rows. **Bold** is a difference above
the noise, see [the leaderboard](../results/leaderboard.md).
"""

_MEASURED = """
Measured in the second round on digits, with 4 clients and one local epoch. Names of
numbers are those of the messages.
"""
