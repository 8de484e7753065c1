"""The search's CSV: written run by run, read, and made into tables and lists."""

import csv
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fedsuite.core.registry import METHODS
from simulations.liars.runs import RefusedError
from simulations.liars.search import Found, is_averaging, row_of, search, skipped

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dishonest_clients.md"

COLUMNS = (
    "method",
    "seed",
    "run",
    "setting",
    "lie",
    "share",
    "size_share",
    "lost",
    "absent",
    "rounds_lost",
    "failed",
    "ended",
    "named",
    "first_suspect",
)

MOST_OF_SIZE = 2.0
"""Times the share that its size gives that a liar may own."""

MOST = 0.5
"""Share that no liar may have more than."""

STOPPED_EARLY = "stopped early"

MOST_POINTS = 10.0
"""Points of accuracy that the others may lose against a liar that is absent."""

_MORE, _MOVED = 1.1, 2.0
"""Times its size's share, and points of the others, from which a lie had an effect."""

_ROUNDING = 0.005

Row = Mapping[str, str]


def csv_of(name: str, into: str = "") -> Path:
    """Return the CSV of the code before or after its defences, or another."""
    return Path(into) if into else RESULTS / f"{name}.csv"


def run(path: Path, methods: Sequence[str], runs: int, seed: int) -> None:
    """Search the methods that the CSV lacks, all of the registry by default."""
    path.parent.mkdir(exist_ok=True, parents=True)
    known = {row["method"] for row in read(path)} if path.exists() else set()
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n")
    for method in methods or METHODS.ours:
        if method in known:
            continue
        try:
            if reason := skipped(method):
                print(f"{method}: skipped: {reason}", flush=True)
                continue
            # A method's rows are written together: none is in the file by half.
            rows = [row_text(found) for found in search(method, runs, seed)]
        except RefusedError as error:
            print(f"{method}: not searched: {error}", flush=True)
            continue
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writerows(rows)
        print(lines(rows)[-1], flush=True)


def row_text(found: Found) -> dict[str, str]:
    """Return a run as the CSV has it."""
    return {name: str(cell) for name, cell in row_of(found).items()}


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of the CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each method, in the order of the CSV."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return found


def worst_share(rows: Sequence[Row]) -> Row | None:
    """Return the run with the largest share over that of the size; None of no share."""
    known = [row for row in rows if row["share"]]
    return max(
        known, key=lambda row: float(row["share"]) / float(row["size_share"]), default=None
    )


def worst_loss(rows: Sequence[Row]) -> Row:
    """Return the run in which the others lose most accuracy."""
    return max(rows, key=lambda row: float(row["lost"]))


def of_row(row: Row) -> Iterator[str]:
    """Yield in which ways a run is beyond the bounds."""
    yield from beyond_what_holds(row)
    if row["ended"] == STOPPED_EARLY:
        yield "the run stopped early"
    if float(row["lost"]) > MOST_POINTS:
        yield f"the others lose {float(row['lost']):.1f} points"


def beyond_what_holds(row: Row) -> Iterator[str]:
    """Yield in which ways a run is beyond the bounds that hold whatever is sent.

    The others' loss of accuracy is no such bound: a mean follows a few liars.
    """
    if row["share"] and is_averaging(row["method"]):
        share, size = float(row["share"]), float(row["size_share"])
        allowed = min(MOST, MOST_OF_SIZE * size)
        if share > allowed + _ROUNDING:
            yield f"share {share:.2f}, and {allowed:.2f} is allowed"
    if row["ended"] not in ("", STOPPED_EARLY):
        yield f"the run ended: {row['ended'][:120]}"
    if row["named"]:
        yield f"an honest client is named: {row['named']}"


def had_effect(row: Row) -> bool:
    """Return whether a lie raised the liar's share or moved the others' accuracy."""
    share = row["share"] and float(row["share"]) > _MORE * float(row["size_share"])
    return bool(share) or abs(float(row["lost"])) > _MOVED


def violations(rows: Sequence[Row]) -> list[str]:
    """Return what is beyond the bounds, one line a run and bound."""
    return [
        f"{row['method']} (seed {row['seed']}, run {row['run']}, {row['setting']}): "
        f"{what}: {row['lie']}"
        for row in rows
        for what in of_row(row)
    ]


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the table by method: the worst of its runs."""
    return [
        "| method | share | of its size | others lose | ended | named | seed: runs |",
        "| --- | ---: | ---: | ---: | --- | --- | --- |",
        *(f"| {' | '.join(_cells(m, own))} |" for m, own in by_method(rows).items()),
    ]


def _cells(method: str, rows: Sequence[Row]) -> list[str]:
    share, loss = worst_share(rows), worst_loss(rows)
    ended, named = (
        next((row for row in rows if row[column]), None) for column in ("ended", "named")
    )
    numbers = [row["run"] for row in (share, loss, ended, named) if row is not None]
    return [
        f"`{method}`",
        f"{float(share['share']):.2f}" if share else "-",
        f"{float(share['size_share']):.2f}" if share else "-",
        f"{float(loss['lost']):+.1f}",
        _how_ended(ended),
        "yes" if named else "no",
        f"{rows[0]['seed']}: {', '.join(dict.fromkeys(numbers))}",
    ]


def _how_ended(row: Row | None) -> str:
    if row is None:
        return "no"
    return "early" if row["ended"] == STOPPED_EARLY else "yes"


def told(rows: Sequence[Row], ranks: bool = True) -> list[str]:
    """Return the sentences of the page that are made of the rows.

    Parameters
    ----------
    rows
        Rows of the CSV.
    ranks
        Whether they tell whom ``analyse suspects`` has first by the rule of today.
    """
    methods = by_method(rows)
    averaging = {m: own for m, own in methods.items() if is_averaging(m)}
    shares = [row for own in averaging.values() if (row := worst_share(own)) is not None]
    times = [float(row["share"]) / float(row["size_share"]) for row in shares]
    beyond = {m: max(map(_points, own)) for m, own in methods.items()}
    hurt = {m: points for m, points in beyond.items() if points > MOST_POINTS}
    ended = {r["method"] for r in rows if r["ended"] not in ("", STOPPED_EARLY)}
    early = {r["method"] for r in rows if r["ended"] == STOPPED_EARLY}
    named = {r["method"] for r in rows if r["named"]}
    most = max((float(row["share"]) for row in shares), default=0.0)
    owned = (
        f"- In the {len(averaging)} methods that average models a liar owns at most "
        f"{most:.2f} of the model, at most {max(times, default=0.0):.1f} times what its "
        "size gives."
    )
    lost = f"- The others lose over {MOST_POINTS:.0f} points in {len(hurt)} methods"
    said = [
        f"- {len(rows)} runs of {len(methods)} methods.",
        owned,
        f"- A lie ends a run of {len(ended)} methods{_names(ended)}.",
        f"- A lie makes the early stop end a run of {len(early)} methods{_names(early)}.",
        f"- A lie has an honest client named in {len(named)} methods{_names(named)}.",
        f"{lost}{_names(hurt)}.",
    ]
    ranked = [row for row in rows if row["first_suspect"] and ranks]
    of_methods = f"of {len({row['method'] for row in ranked})} methods"
    hurt_by = [row for row in ranked if had_effect(row)]
    for those, of in ((ranked, of_methods), (hurt_by, "in which it had an effect")):
        if those:
            first = Counter(row["first_suspect"] for row in those)
            said.append(
                f"- `analyse suspects`, in {len(those)} runs {of}: a liar stands out first "
                f"in {first['liar']}, nobody in {first['nobody']}, an honest client in "
                f"{first['honest']}."
            )
    return [_wrapped(line) for line in said]


def _wrapped(line: str) -> str:
    return textwrap.fill(
        line, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _points(row: Row) -> float:
    return float(row["lost"])


def _names(methods: Iterable[str]) -> str:
    listed = ", ".join(f"`{method}`" for method in sorted(methods))
    return f": {listed}" if listed else ""


def generated() -> Iterator[tuple[str, list[str]]]:
    """Yield each part of the page that the CSVs make, by its name between the marks."""
    for name in ("before", "after"):
        path = csv_of(name)
        if path.exists():
            rows = read(path)
            yield name, ["", *told(rows, name == "after"), "", *lines(rows), ""]
            rules = path.with_name(f"mends_{name}.csv")
            if rules.exists():
                yield f"mends {name}", ["", *mend_lines(read(rules)), ""]
            together = path.with_name(f"coalitions_{name}.csv")
            if together.exists():
                yield f"coalitions {name}", ["", *coalition_lines(read(together)), ""]


def mend_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table of the worst lies under each rule."""
    rules = list(dict.fromkeys(row["aggregator"] for row in rows))
    made = [
        f"| method | {' | '.join(f'`{rule}`' for rule in rules)} |",
        "| --- |" + " ---: |" * len(rules),
    ]
    for method, own in by_method(rows).items():
        lost = {row["aggregator"]: f"{float(row['lost']):+.1f}" for row in own}
        made.append(f"| `{method}` | {' | '.join(lost.get(r, '-') for r in rules)} |")
    return made


def coalition_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table of liars who act together, and of backdoors."""
    return [
        "| case | rule | share | others lose | backdoor | ended | honest named |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
        *(
            f"| {row['case']} | `{row['aggregator']}` | {row['share'] or '-'} "
            f"| {float(row['lost']):+.1f} | {row['backdoor'] or '-'} "
            f"| {'yes' if row['ended'] else 'no'} | {'yes' if row['named'] else 'no'} |"
            for row in rows
            if row["lost"]
        ),
    ]


def written(page: str) -> str:
    """Return the page with its generated parts between their marks."""
    for name, made in generated():
        begin, end = f"<!-- BEGIN {name} -->", f"<!-- END {name} -->"
        if begin in page:
            head, _, rest = page.partition(begin)
            _, _, tail = rest.partition(end)
            page = f"{head}{begin}\n{chr(10).join(made)}\n{end}{tail}"
    return page


def rewrite_page() -> None:
    """Write the generated parts of the page anew."""
    PAGE.write_text(written(PAGE.read_text()))
