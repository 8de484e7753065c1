"""Runs each method that averages models with one liar of five, and prints a table.

    python simulations/robustness/one_liar.py run      # adds the missing rows to the CSV
    python simulations/robustness/one_liar.py table    # prints the table of the CSV

Digits, linear model, all defaults, six rounds. The liar claims 1,000,000 examples, claims a
loss of 10, or sends numbers of one size and of both signs in round 2.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, TRAIN, to_arrays, to_record
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
    "plots": False,
    "workers": 1,
}

FACTORED: dict[str, Value] = {"model": "mlp", "hidden-width": 32}
"""A linear model has no layer that FedPara's factors would make smaller."""


def averaging_methods() -> list[str]:
    """Return the methods whose clients send back one shared model."""
    strategies = {name: load_strategy(METHODS[name]) for name in METHODS}
    return [n for n, s in strategies.items() if s.trains_one_model()]


class LyingOnce(PromptGrid):
    """A grid on which one client sends false numbers in round 2."""

    def __init__(self, grid: Grid, lie: tuple[float, float], liar: int) -> None:
        super().__init__(grid)
        self._lie, self._liar, self._rounds = lie, liar, 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages; yield the replies, the liar's forged in the second round."""
        sent = list(messages)
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        if sent and sent[0].metadata.message_type == TRAIN:
            self._rounds += 1
            if self._rounds == 2:
                self._forge(replies)
        return iter(replies)

    def _forge(self, replies: list[Message]) -> None:
        ending = f"client-{self._liar}.{ARRAYS}"
        for reply in replies:
            for name in [n for n in reply.content if n.endswith(ending)]:
                signs = np.random.default_rng(0)
                reply.content[name] = to_record(
                    {
                        key: signs.choice(self._lie, array.shape).astype(array.dtype)
                        for key, array in to_arrays(reply.content[name]).items()
                    }
                )


def row_of(method: str, lie: str) -> tuple[str, ...]:
    """Run a method with a lie; return the row of the table."""
    values: dict[str, Value] = {**BASE, "method": method, **CLAIMS.get(lie, {})}
    if load_strategy(METHODS[method]).takes("public_rows"):
        values["public-size"] = 100
    if method in ("fedpara", "pfedpara"):
        values |= FACTORED
    experiment = Experiment.from_values(values)
    plan = AttackPlan(attack="scale", attackers=0.2, seed=0, num_clients=5)
    [liar] = plan.liars()

    def lying(_: Experiment, grid: Grid) -> Grid:
        return LyingOnce(grid, SENT[lie], liar)

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
    went_back = any("went_back_to" in row for row in rounds)
    return method, lie, largest, f"{rounds[-1]['accuracy_mean']:.4f}", str(went_back)


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
    for method in averaging_methods():
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
    for method in averaging_methods():
        rows = [known[method, lie] for lie in (*CLAIMS, *SENT)]
        cells = [row["largest_weight"] for row in rows[1 : len(CLAIMS)]]
        cells += [_per_cent(row["accuracy"]) for row in rows]
        print(f"| `{method}` | {' | '.join(cells)} |")


def _per_cent(text: str) -> str:
    return text if text.startswith("ended") else f"{100 * float(text):.1f}"


if __name__ == "__main__":
    {"run": run, "table": table}[sys.argv[1]]()
