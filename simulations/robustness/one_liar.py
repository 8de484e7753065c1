"""Runs methods of averages, distillation and rewards with one liar of five, for a table.

    python simulations/robustness/one_liar.py run      # adds the missing rows to the CSV
    python simulations/robustness/one_liar.py table    # prints the table of the CSV

Digits, linear model, all defaults, six rounds. The liar claims 1,000,000 examples, claims a
loss of 10, or sends numbers of one size and of both signs as its model in round 2.

Methods of distillation and rewards run twelve rounds, and each array of the liar is such
numbers from round 2 on. Accuracy is that of the other four clients, because a refused liar
gets nothing, and scores badly itself. Distillation trains by Adam at 0.01, by which these
rounds suffice, and so do MOON and FedBABU, which need a hidden layer.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    TRAIN,
)
from fedsuite.strategies import load_strategy
from fedsuite.training.attack_plan import AttackPlan
from fedsuite.workarounds.prompt_grid import PromptGrid

ROWS = Path(__file__).parent / "results" / "one_liar.csv"
COLUMNS = ("method", "lie", "largest_weight", "accuracy", "went_back")
CLAIMS: dict[str, dict[str, Value]] = {
    "none": {},
    "1e6 examples": {"attack": "lie-examples", "attack-strength": 1e6},
    "loss 10": {"attack": "lie-loss", "attack-strength": 10.0},
}
SENT = {"1e38": (1e38, 1e38), "+-1e6": (1e6, -1e6)}
BASE: dict[str, Value] = {
    "dataset": "digits",
    "model": "linear",
    "num-clients": 5,
    "num-rounds": 6,
    "checkpoint-every": 0,
    "report": False,
    "workers": 1,
}

HIDDEN: dict[str, Value] = {"model": "mlp", "hidden-width": 32}
HIDDEN_METHODS = (
    "fedpara",
    "pfedpara",
    "fedsac",
    "fccl-plus",
    "fedproto",
    "fedproto-public",
    "moon",
    "fedbabu",
)
"""They need a layer before the last one."""

SLOW_METHODS = ("moon", "fedbabu")
"""They learn next to nothing in six rounds of the default optimiser."""

LONGER: dict[str, Value] = {"num-rounds": 12}
BY_ADAM: dict[str, Value] = {"optimizer": "adam", "learning-rate": 0.01}


def averaging_methods() -> list[str]:
    """Return the methods whose clients send back one shared model, several in a round."""
    strategies = {name: load_strategy(METHODS[name]) for name in METHODS}
    alone = {n for n, s in strategies.items() if s.DEFAULTS.get("clients-per-round") == 1}
    return [n for n, s in strategies.items() if s.trains_one_model() and n not in alone]


def other_methods() -> list[str]:
    """Return the methods of distillation and rewards, but those that average as well."""
    families = ("distillation.", "reward.")
    names = [n for n, m in METHODS.ours.items() if m.strategy.startswith(families)]
    return [name for name in names if name not in averaging_methods()]


class LyingOnce(PromptGrid):
    """A grid on which one client sends false numbers in round 2."""

    def __init__(
        self, grid: Grid, lie: tuple[float, float], liar: int, *, everything: bool
    ) -> None:
        super().__init__(grid)
        self._lie, self._liar, self._rounds = lie, liar, 0
        self._everything = everything

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages; yield the replies, the liar's forged in the second round."""
        sent = list(messages)
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        kind = sent[0].metadata.message_type if sent else ""
        if kind == EVALUATE:
            self._rounds += 1
        elif self._rounds >= 1 if self._everything else self._rounds == 1 and kind == TRAIN:
            self._forge(replies)
        return iter(replies)

    def _forge(self, replies: list[Message]) -> None:
        ending = f"client-{self._liar}." + ("" if self._everything else ARRAYS)
        for reply in replies:
            for name in [n for n in reply.content.array_records if ending in n]:
                signs = np.random.default_rng(0)
                reply.content[name] = to_record(
                    {
                        # Whole numbers count classes: false ones would betray the rest.
                        key: signs.choice(self._lie, array.shape).astype(array.dtype)
                        if array.dtype.kind == "f"
                        else array
                        for key, array in to_arrays(
                            reply.content.array_records[name]
                        ).items()
                    }
                )


def row_of(method: str, lie: str) -> tuple[str, ...]:
    """Run a method with a lie; return the row of the table."""
    values: dict[str, Value] = {**BASE, "method": method, **CLAIMS.get(lie, {})}
    strategy = load_strategy(METHODS[method])
    if strategy.takes("public_rows") or strategy.takes("public"):
        values["public-size"] = 100
    if method in HIDDEN_METHODS:
        values |= HIDDEN
    if method in other_methods():
        values |= LONGER
    distils = METHODS[method].strategy.startswith("distillation.") and method != "fedakd"
    if distils or method in SLOW_METHODS:
        values |= BY_ADAM
    experiment = Experiment.from_values(values)
    plan = AttackPlan(attack="scale", attackers=0.2, seed=0, num_clients=5)
    [liar] = plan.liars()

    def lying(_: Experiment, grid: Grid) -> Grid:
        everything = method in other_methods()
        return LyingOnce(grid, SENT[lie], liar, everything=everything)

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        path = Path(folder) / "run"
        try:
            if lie in SENT:
                with patch("fedsuite.running.server.with_liars", lying):
                    run_local(experiment, path)
            else:
                run_local(experiment, path)
        except FedsuiteError as error:
            return method, lie, "", f"ended: {error}", ""
        rounds, clients = (
            [json.loads(line) for line in (path / f"{name}.jsonl").read_text().splitlines()]
            for name in ("rounds", "clients")
        )
    shares = [row["weight"] for row in clients if row["client"] == liar and "weight" in row]
    largest = f"{max(shares):.2f}" if shares else ""
    accuracy = rounds[-1]["accuracy_mean"]
    if method in other_methods():
        honest = [
            row["accuracy"]
            for row in clients
            if row["round"] == rounds[-1]["round"]
            and row["phase"] == EVALUATE
            and row["client"] != liar
        ]
        accuracy = fmean(honest)
    went_back = any("went_back_to" in row for row in rounds)
    return method, lie, largest, f"{accuracy:.4f}", str(went_back)


def read() -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of the CSV."""
    if not ROWS.exists():
        return {}
    with ROWS.open() as file:
        return {(row["method"], row["lie"]): row for row in csv.DictReader(file)}


def run() -> None:
    """Run what is missing."""
    known = read()
    ROWS.parent.mkdir(exist_ok=True)
    if not known:
        ROWS.write_text(",".join(COLUMNS) + "\n")
    for method in (*averaging_methods(), *other_methods()):
        for lie in (*CLAIMS, *SENT):
            if (method, lie) not in known:
                with ROWS.open("a", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerow(row_of(method, lie))


def table() -> None:
    """Print the table: the liar's largest weight by a claim, and accuracies in per cent."""
    known = read()
    titles = [f"weight, {lie}" for lie in CLAIMS if lie != "none"]
    titles += [f"accuracy, {lie}" for lie in (*CLAIMS, *SENT)]
    print(f"| method | {' | '.join(titles)} |")
    print("| --- |" + " ---: |" * len(titles))
    for method in (*averaging_methods(), *other_methods()):
        rows = [known[method, lie] for lie in (*CLAIMS, *SENT)]
        cells = [row["largest_weight"] for row in rows[1 : len(CLAIMS)]]
        cells += [_per_cent(row["accuracy"]) for row in rows]
        print(f"| `{method}` | {' | '.join(cells)} |")


def _per_cent(text: str) -> str:
    return text if text.startswith("ended") else f"{100 * float(text):.1f}"


if __name__ == "__main__":
    {"run": run, "table": table}[sys.argv[1]]()
