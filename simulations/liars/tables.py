"""The search's CSV: written run by run, read, and made into tables and lists."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedsuite.core.registry import METHODS
from simulations.liars.search import is_averaging, row_of, search, skipped

RESULTS = Path(__file__).parent / "results"

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

MOST_POINTS = 10.0
"""Points of accuracy that the others may lose against a liar that is absent."""

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
        if reason := skipped(method):
            print(f"{method}: skipped: {reason}")
            continue
        # A method's rows are written together, so that none is in the file by half.
        rows = [row_of(found) for found in search(method, runs, seed)]
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writerows(rows)
        texts = [{name: str(cell) for name, cell in row.items()} for row in rows]
        print("\n".join(lines(texts, head=False)), flush=True)


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
    if row["share"] and is_averaging(row["method"]):
        share, size = float(row["share"]), float(row["size_share"])
        allowed = min(MOST, MOST_OF_SIZE * size)
        if share > allowed + _ROUNDING:
            yield f"share {share:.2f}, and {allowed:.2f} is allowed"
    if row["ended"]:
        yield f"the run ended: {row['ended'][:120]}"
    if row["named"]:
        yield f"an honest client is named: {row['named']}"
    if float(row["lost"]) > MOST_POINTS:
        yield f"the others lose {float(row['lost']):.1f} points"


def violations(rows: Sequence[Row]) -> list[str]:
    """Return what is beyond the bounds, one line a run and bound."""
    return [
        f"{row['method']} (seed {row['seed']}, run {row['run']}, {row['setting']}): {what}: "
        f"{row['lie']}"
        for row in rows
        for what in of_row(row)
    ]


def lines(rows: Sequence[Row], head: bool = True) -> Iterator[str]:
    """Yield the table by method: the worst of its runs."""
    if head:
        yield (
            "| method | share | of its size | others lose, points | run ended | honest named "
            "| runs, seed |"
        )
        yield "| --- | ---: | ---: | ---: | --- | --- | --- |"
    for method, own in by_method(rows).items():
        share, loss = worst_share(own), worst_loss(own)
        ended, named = (
            next((row for row in own if row[column]), None) for column in ("ended", "named")
        )
        places = [row["run"] for row in (share, loss, ended, named) if row is not None]
        cells = (
            f"`{method}`",
            f"{float(share['share']):.2f}" if share else "-",
            f"{float(share['size_share']):.2f}" if share else "-",
            f"{float(loss['lost']):+.1f}",
            "yes" if ended else "no",
            "yes" if named else "no",
            f"{', '.join(dict.fromkeys(places))}; {own[0]['seed']}",
        )
        yield f"| {' | '.join(cells)} |"
