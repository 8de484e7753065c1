"""What methods cost in three worlds of devices, by the hour and the gigabyte.

    python simulations/hours/hours.py tune    # adds the missing trials to tuning.csv
    python simulations/hours/hours.py run     # adds the missing runs to by_seed.csv
    python simulations/hours/hours.py page    # writes README.md, figure.png and the how-to

The how-to is docs/how-to/which_method_for_my_line.md, of which the table is written. The
rules are those of protocol.md. Each command goes on where it was stopped.
"""

import csv
import math
import platform
import sys
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.core.text import read_text
from fedsuite.results.paired import Paired, paired
from fedsuite.results.tables import markdown_table

HERE = Path(__file__).parent
TUNING = HERE / "results" / "tuning.csv"
RUNS = HERE / "results" / "by_seed.csv"
MADE_ON = HERE / "results" / "made_on.csv"
HOW_TO = HERE.parents[1] / "docs" / "how-to" / "which_method_for_my_line.md"
BEGIN, END = "<!-- lines: begin -->\n", "<!-- lines: end -->"
TUNING_COLUMNS = ("arm", "learning_rate", "validation_accuracy")
COLUMNS = (
    *("world", "arm", "seed", "round"),
    *("virtual_seconds", "mb_up", "mb_down", "accuracy"),
)

SEEDS = range(1, 6)
TUNING_SEED = 101
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
BELOW = 3.0
"""Points of the target below FedAvg's best validation accuracy."""

BASE: Mapping[str, Value] = {
    "dataset": "digits",
    "fresh-test-split": True,
    "partitioner": "dirichlet",
    "dirichlet-alpha": 0.5,
    "model": "mlp",
    "hidden-width": 256,
    "hidden-layers": 2,
    "num-clients": 20,
    "clients-per-round": 10,
    "client-validation-fraction": 0.2,
    "num-rounds": 30,
    "evaluate-every": 2,
    "local-epochs": 2,
    "batch-size": 16,
    "optimizer": "sgd",
    "checkpoint-every": 0,
    "report": False,
    "workers": 1,
}

WORLDS = ("data-centre", "phones-at-night", "hospitals")

FEDAVG = "fedavg"
ARMS: Mapping[str, Mapping[str, Value]] = {
    FEDAVG: {"method": "fedavg"},
    "fedavg-ft": {"method": "fedavg-ft"},
    "fedavgm": {"method": "fedavg", "server-momentum": 0.9},
    "feddyn": {"method": "feddyn"},
    "fedpac": {"method": "fedpac"},
    "fedrod": {"method": "fedrod"},
    "fedbuff": {"method": "fedbuff", "num-rounds": 60, "evaluate-every": 4},
    "over-select": {"method": "fedavg", "over-select": 1.3},
    "compressed": {
        "method": "fedavg",
        "compress-up": "qsgd",
        "compress-down": "qsgd",
        "compress-bits": 4,
    },
    "placebo": {"method": "fedavg", "momentum": 0.001},
    "standalone": {"method": "standalone", "clients-per-round": 0},
}
RATE_OF = {"over-select": FEDAVG, "compressed": FEDAVG, "placebo": FEDAVG}
"""Arms that are FedAvg with an option, and take its learning rate."""

SAY = {
    FEDAVG: "FedAvg",
    "fedavg-ft": "FedAvg, then fine-tuned",
    "fedavgm": "FedAvg with server momentum 0.9",
    "feddyn": "FedDyn",
    "fedpac": "FedPAC",
    "fedrod": "FedRoD",
    "fedbuff": "FedBuff, half of the replies",
    "over-select": "FedAvg, 13 asked for 10",
    "compressed": "FedAvg, 4 bits both ways",
    "placebo": "placebo (momentum 0.001)",
    "standalone": "training alone",
}


class Evaluation(NamedTuple):
    """What a run had spent, and its accuracy then."""

    server_round: int
    seconds: float
    mb_up: float
    mb_down: float
    accuracy: float


Curves = Mapping[tuple[str, str, int], Sequence[Evaluation]]


# ----------------------------------------------------------------------------- the runs


def rounds_of(values: Mapping[str, Value]) -> list[Mapping[str, Any]]:
    """Run an experiment; return the rows of its rounds."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run = fedsuite.run({**values, "output-dir": folder, "run-name": "run"})
        return list(run.rounds)


def add(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows to a table, all of a run at once."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if not path.exists():
        lines.writerow(columns)
    lines.writerows(rows)
    with path.open("a", newline="") as file:
        file.write(text.getvalue())


def tune() -> None:
    """Run each arm with each learning rate."""
    for arm in ARMS:
        for rate in RATES:
            if arm in RATE_OF or (arm, rate) in scores():
                continue
            rounds = rounds_of(
                {**BASE, **ARMS[arm], "learning-rate": rate, "seed": TUNING_SEED}
            )
            rows = [r for r in rounds if "validation_accuracy_mean" in r][-3:]
            score = fmean(float(r["validation_accuracy_mean"]) for r in rows)
            add(TUNING, TUNING_COLUMNS, [(arm, rate, f"{score:.6f}")])


def run() -> None:
    """Run each arm in each world with each seed, seed by seed."""
    if not MADE_ON.exists():
        facts = machine()
        add(MADE_ON, tuple(facts), [tuple(facts.values())])
    for seed in SEEDS:
        for world in WORLDS:
            for arm in ARMS:
                if (world, arm, seed) not in curves():
                    add(RUNS, COLUMNS, measured(world, arm, seed))


def measured(world: str, arm: str, seed: int) -> list[tuple[object, ...]]:
    """Run an arm; return a row for each evaluation."""
    rate = best_rates()[RATE_OF.get(arm, arm)]
    rounds = rounds_of(
        {**BASE, **ARMS[arm], "learning-rate": rate, "devices": world, "seed": seed}
    )
    rows: list[tuple[object, ...]] = []
    up = down = 0.0
    for row in rounds:
        up += float(row.get("bytes_up") or 0) / 1e6
        down += float(row.get("bytes_down_train") or 0) / 1e6
        if "accuracy_mean" in row:
            costs = f"{row['virtual_seconds']:.3f}", f"{up:.4f}", f"{down:.4f}"
            accuracy = f"{row['accuracy_mean']:.5f}"
            rows.append((world, arm, seed, row["round"], *costs, accuracy))
    return rows


def machine() -> dict[str, str]:
    """Return what made the runs."""
    lines = read_text(Path("/proc/cpuinfo")).splitlines()
    model = next((x.split(":")[1].strip() for x in lines if "model name" in x), "unknown")
    return {
        "command": "python simulations/hours/hours.py tune; run",
        "seeds": " ".join(map(str, SEEDS)),
        "machine": f"{model}, one thread, beside other work",
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "torch": version("torch"),
    }


# ---------------------------------------------------------------------------- the tables


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table that may not be there yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scores() -> dict[tuple[str, float], float]:
    """Return the validation accuracy, a fraction, of each arm with each rate."""
    return {
        (row["arm"], float(row["learning_rate"])): float(row["validation_accuracy"])
        for row in read(TUNING)
    }


def best_rates() -> dict[str, float]:
    """Return the rate with the best score of each arm, the smaller one of equals."""
    known = scores()
    arms = [arm for arm in ARMS if arm not in RATE_OF]
    return {arm: max(RATES, key=lambda rate: (known[arm, rate], -rate)) for arm in arms}


def target() -> float:
    """Return the accuracy, a fraction, that a run has to reach."""
    best = max(scores()[FEDAVG, rate] for rate in RATES)
    return math.floor(100 * best - BELOW) / 100


def curves() -> Curves:
    """Return the evaluations of each run."""
    known: dict[tuple[str, str, int], list[Evaluation]] = defaultdict(list)
    for row in read(RUNS):
        numbers = (float(row[name]) for name in COLUMNS[4:])
        evaluation = Evaluation(int(row["round"]), *numbers)
        known[row["world"], row["arm"], int(row["seed"])].append(evaluation)
    return known


def reached(curve: Sequence[Evaluation], goal: float) -> Evaluation | None:
    """Return the first evaluation with the target; None if there is none."""
    return next((e for e in curve if e.accuracy >= goal), None)


class Cost(NamedTuple):
    """What a run had spent when it reached the target, or at its end."""

    seconds: float
    megabytes: float
    is_reached: bool


def cost_of(curve: Sequence[Evaluation], goal: float) -> Cost:
    """Return what a run cost; one that misses the target counts with its whole cost."""
    there = reached(curve, goal)
    last = there or curve[-1]
    return Cost(last.seconds, last.mb_up + last.mb_down, there is not None)


TEST_SHARE = 0.25
"""Test rows over training rows of digits, validation rows among the latter."""


class Row(NamedTuple):
    """An arm in a world, over the seeds that all its arms have."""

    arm: str
    accuracies: list[float]
    costs: list[Cost]
    seconds: Paired | None
    megabytes: Paired | None

    @property
    def is_bound(self) -> bool:
        """Whether a run missed the target, so that its costs are lower bounds."""
        return not all(cost.is_reached for cost in self.costs)


def rows_of(world: str) -> list[Row]:
    """Return the rows of a world's table."""
    known, goal = curves(), target()
    seeds = complete_seeds(known)
    costs = {
        arm: [cost_of(known[world, arm, seed], goal) for seed in seeds] for arm in ARMS
    }
    base = costs[FEDAVG]
    rows = []
    for arm in ARMS:
        ends = [known[world, arm, seed][-1].accuracy for seed in seeds]
        has_ratio = arm != FEDAVG and all(cost.is_reached for cost in base)
        pairs = list(zip(costs[arm], base, strict=True)) if has_ratio else []
        seconds = [math.log(own.seconds / other.seconds) for own, other in pairs]
        sent = [math.log(o.megabytes / b.megabytes) for o, b in pairs if o.megabytes]
        rows.append(
            Row(
                arm,
                ends,
                costs[arm],
                paired(seconds, TEST_SHARE) if seconds else None,
                paired(sent, TEST_SHARE) if sent else None,
            )
        )
    return rows


def complete_seeds(known: Curves) -> list[int]:
    """Return the seeds of which every run is there."""
    return [
        seed
        for seed in SEEDS
        if all((world, arm, seed) in known for world in WORLDS for arm in ARMS)
    ]


def ratio_cell(row: Row, compared: Paired | None, placebo: Paired | None) -> str:
    """Return a ratio with its intervals, in bold where the protocol calls it one."""
    if compared is None:
        return ""
    mean = math.exp(compared.mean)
    if row.is_bound:
        return f"≥ {mean:.2f}"
    half, corrected = compared.half_width or 0.0, compared.corrected or 0.0
    text = f"{mean:.2f} {around(compared.mean, half)}, {around(compared.mean, corrected)}"
    noise = abs(placebo.mean) if placebo else 0.0
    is_one = abs(compared.mean) > max(corrected, noise)
    return f"**{text}**" if is_one and row.arm != "placebo" else text


def around(mean: float, half: float) -> str:
    """Return the ends of an interval of logarithms as ratios."""
    return f"[{math.exp(mean - half):.2f}, {math.exp(mean + half):.2f}]"


def table_of(world: str) -> str:
    """Return a world's table."""
    rows = rows_of(world)
    placebo = next(row for row in rows if row.arm == "placebo")
    lines = [
        [
            *("arm", "accuracy at the end, %", "reached", "seconds", "of FedAvg's"),
            *("MB", "of FedAvg's"),
        ]
    ]
    for row in rows:
        mark = "≥ " if row.is_bound else ""
        seconds = median(cost.seconds for cost in row.costs)
        megabytes = median(cost.megabytes for cost in row.costs)
        lines.append(
            [
                SAY[row.arm],
                f"{100 * fmean(row.accuracies):.1f}",
                f"{sum(c.is_reached for c in row.costs)} of {len(row.costs)}",
                f"{mark}{seconds:.1f}",
                ratio_cell(row, row.seconds, placebo.seconds),
                f"{mark}{megabytes:.1f}" if megabytes else "0",
                ratio_cell(row, row.megabytes, placebo.megabytes),
            ]
        )
    return markdown_table(lines)


CHOICES = (
    ("Fast lines and like devices", "data-centre", "fedavgm"),
    ("Phones of unlike speed", "phones-at-night", "compressed"),
    ("Phones, and bytes are free", "phones-at-night", "over-select"),
    ("Phones, and nobody's work may be lost", "phones-at-night", "fedbuff"),
    ("One slow line among few sites", "hospitals", "compressed"),
    ("One slow line, and its site's rows may be missed", "hospitals", "over-select"),
    ("One slow line, and no coding is wanted", "hospitals", "fedbuff"),
)
"""What the page "which method for my line" says to take, and in which world."""

KEYS = {
    "fedavgm": "`server-momentum=0.9`",
    "compressed": "`compress-up=qsgd compress-down=qsgd compress-bits=4`",
    "over-select": "`over-select=1.3`",
    "fedbuff": "`method=fedbuff`",
}


def choices() -> str:
    """Return the table of the page "which method for my line"."""
    lines = [["your line", "take", "time, of FedAvg's", "bytes, of FedAvg's"]]
    for words, world, arm in CHOICES:
        row = next(row for row in rows_of(world) if row.arm == arm)
        cells = []
        for compared in (row.seconds, row.megabytes):
            cell = "" if compared is None else f"{math.exp(compared.mean):.2f}"
            if compared is not None and not row.is_bound:
                cell += f" {around(compared.mean, compared.corrected or 0.0)}"
            cells.append(f"≥ {cell}" if row.is_bound and cell else cell)
        lines.append([words, KEYS[arm], *cells])
    return markdown_table(lines, left=(0, 1))


SHOWN = tuple(arm for arm in ARMS if arm not in ("fedavg-ft", "placebo"))


def draw() -> None:
    """Draw accuracy against virtual hours and against gigabytes, means over seeds."""
    known = curves()
    seeds = complete_seeds(known)
    figure, axes = plt.subplots(2, 3, figsize=(10, 6.2), sharey=True, layout="constrained")
    for column, world in enumerate(WORLDS):
        hours, sent = axes[0, column], axes[1, column]
        for arm in SHOWN:
            runs = [known[world, arm, seed] for seed in seeds]
            steps = list(zip(*runs, strict=True))
            accuracies = [100 * fmean(e.accuracy for e in step) for step in steps]
            times = [fmean(e.seconds for e in step) / 3600 for step in steps]
            amounts = [fmean(e.mb_up + e.mb_down for e in step) / 1000 for step in steps]
            style = "--" if arm == "standalone" else "-"
            (line,) = hours.plot(times, accuracies, style, label=SAY[arm])
            if arm != "standalone":
                sent.plot(amounts, accuracies, style, color=line.get_color())
        hours.set_title(world)
        hours.set_xlabel("virtual hours")
        sent.set_xlabel("gigabytes, both ways")
        for panel in (hours, sent):
            panel.set_xscale("log")
            panel.axhline(100 * target(), color="0.6", linewidth=0.8)
            panel.set_ylim(40, 100)
    for panel in axes[:, 0]:
        panel.set_ylabel("mean accuracy, %")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(HERE / "figure.png", dpi=110)


def rendered() -> str:
    """Return the page: page.md with what the tables say."""
    (facts,) = read(MADE_ON)
    known = {
        "target": f"{100 * target():.0f}",
        "seeds": ", ".join(map(str, complete_seeds(curves()))),
        "rates": ", ".join(f"`{arm}` {r:g}" for arm, r in best_rates().items()),
        **facts,
        **{f"table {world}": table_of(world) for world in WORLDS},
    }
    text = read_text(HERE / "page.md")
    for name, value in known.items():
        text = text.replace("{" + name + "}", value.strip())
    return "\n".join(map(_wrapped, text.splitlines())) + "\n"


def _wrapped(line: str) -> str:
    """Return a line of text as lines of at most 100 columns; tables stay."""
    if len(line) <= 100 or line.startswith("|"):
        return line
    indent = "  " if line.startswith(("- ", "  ")) else ""
    return textwrap.fill(line, 100, subsequent_indent=indent)


def how_to() -> str:
    """Return the page "which method for my line" with the table that the runs make."""
    before, _, rest = read_text(HOW_TO).partition(BEGIN)
    return f"{before}{BEGIN}{choices()}{END}{rest.partition(END)[2]}"


def page() -> None:
    """Write the page, its picture, and the table of the how-to."""
    draw()
    (HERE / "README.md").write_text(rendered())
    HOW_TO.write_text(how_to())


if __name__ == "__main__":
    {"tune": tune, "run": run, "page": page}[sys.argv[1]]()
