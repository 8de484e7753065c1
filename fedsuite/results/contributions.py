"""Clients' contributions as methods measure them, against the accuracies reached alone.

Figure 1(b) to (e) of FedAKD's paper. A contribution is a record of the last round: the
reputation (CFFL, CGSV, FedAVE, FedSAC), or else the weight in the average, or else the
share of the training samples, which is FedAvg's weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedsuite.core.errors import RunError
from fedsuite.core.metrics import collaborative_fairness
from fedsuite.results.analysis_files import Output, Table, panels
from fedsuite.results.groups import SEED, Group, group_runs
from fedsuite.results.plots import PALETTE, dress, escape_dollars
from fedsuite.results.reader import Client, Run

KINDS = {"reputation": "reputation", "weight": "weight", "num_examples": "data share"}
"""Names of columns of ``clients.jsonl``; the first column that a run has counts."""


@dataclass(frozen=True)
class Contributions:
    """Contributions of a run's clients, as shares of 1, and accuracies alone."""

    label: str
    seed: object
    kind: str
    alone: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def correlation(self) -> float | None:
        """Pearson's r; None where undefined, as for equal shares."""
        percent = collaborative_fairness(self.alone, self.shares)
        return None if percent is None else percent / 100


def contributions(label: str, run: Run, alone: Run) -> Contributions:
    """Return a run's contributions and Standalone's accuracies, of at least two clients."""
    histories = ((kind, run.client_history("train", name)) for name, kind in KINDS.items())
    kind, history = next((pair for pair in histories if pair[1]), ("", {}))
    values: dict[Client, float] = {}
    # Not all clients need to have trained in the last round.
    for server_round in sorted(history):
        values |= history[server_round]
    tested = alone.client_values("evaluate", "num_examples")
    accuracies = alone.client_values("evaluate", "accuracy")
    clients = sorted(
        (k for k in values if k in accuracies and tested.get(k, 0) >= 1), key=str
    )
    if len(clients) < 2:
        raise RunError(f"{run.path} and {alone.path}: fewer than two clients in common")
    amounts = np.array([values[k] for k in clients])
    total = amounts.sum()
    # Amounts that cancel out have no shares.
    has_shares = abs(total) > 1e-9 * np.abs(amounts).max()
    shares = amounts / total if has_shares else amounts
    own = tuple(accuracies[k] for k in clients)
    return Contributions(label, run.experiment.get(SEED), kind, own, tuple(shares.tolist()))


def write_contributions(
    files: Output, runs: Sequence[Run], alone: Mapping[Path, Run]
) -> None:
    """Write the contributions of runs; ``alone`` has Standalone by the folder of a run."""
    groups = group_runs(runs)
    rows = [contributions(g.label, run, alone[run.path]) for g in groups for run in g.runs]
    columns = ("experiment", "seed", "contribution", "Pearson r", "least", "largest")
    cells = [
        (c.label, str(c.seed), c.kind, c.correlation, min(c.shares), max(c.shares))
        for c in rows
    ]
    note = (
        "Contributions in the last round of each client, as shares of 1, against its "
        "accuracy alone on its own test rows; r is left out where it is undefined."
    )
    files.write(Table(columns, cells, note), contribution_figure(groups, rows))


def contribution_figure(groups: Sequence[Group], rows: Sequence[Contributions]) -> Figure:
    """Draw contribution against accuracy alone, one panel per experiment."""
    figure, grid = panels(len(groups), min(3, len(groups)), 3.9, 3.3)
    for axes, group in zip(grid, groups, strict=True):
        own = [c for c in rows if c.label == group.label]
        for index, one in enumerate(own):
            x, colour = 100 * np.array(one.alone), PALETTE[index % len(PALETTE)]
            axes.plot(x, one.shares, "o", color=colour, markersize=4, alpha=0.8)
        known = [c.correlation for c in own if c.correlation is not None]
        mean = f"{np.mean(known):.2f}" if known else "undefined"
        title = f"{escape_dollars(group.label)}: r = {mean}"
        dress(axes, title, "accuracy alone (%)", f"{own[0].kind} (share of 1)")
    return figure
