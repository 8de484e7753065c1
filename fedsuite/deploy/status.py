"""Status of a federation: nodes, runs, last rounds, rejected replies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsuite.core.errors import FedsuiteError, one_line
from fedsuite.deploy.folders import SuperLinkFolder
from fedsuite.deploy.programs import ask, entries_told, node_numbers
from fedsuite.engines.flower import CONNECTION
from fedsuite.results.reader import load_run
from fedsuite.results.score import main_score
from fedsuite.results.writer import status_of

if TYPE_CHECKING:
    from rich.table import Table

REJECTED = "rejected-reply"

ONLINE = "online"
"""Flower's word for a node that is connected."""


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run, read from its folder.

    ``score`` is the mean over clients of the main score at the last evaluation, in words,
    and ``rejected`` counts the causes of rejected replies, of which ``last_reason`` is the
    last one's. ``number`` is Flower's of the run.
    """

    name: str
    status: str
    rounds: int
    planned: int
    score: str
    rejected: Counter[str]
    last_reason: str
    number: str = ""


def list_nodes(folder: SuperLinkFolder) -> list[tuple[str, str]]:
    """Return name and status of each node."""
    return _named(folder, _states(folder))


def _states(folder: SuperLinkFolder) -> dict[str, str]:
    """Return Flower's status of each node, by its number."""
    answer = ask(folder, "supernode", "list", CONNECTION, "--format", "json")
    return {
        str(node.get("node-id")): str(node.get("status", ""))
        for node in entries_told(answer, "nodes")
    }


def _named(folder: SuperLinkFolder, states: Mapping[str, str]) -> list[tuple[str, str]]:
    numbers = node_numbers(folder)
    return [
        (name, states.get(numbers.get(name, ""), "not registered")) for name in folder.nodes
    ]


def _strangers(folder: SuperLinkFolder, states: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the nodes that may join and were not let in from this folder."""
    own = set(node_numbers(folder).values())
    return [
        (f"{number} (not of this folder)", state)
        for number, state in states.items()
        if number not in own and state != "unregistered"
    ]


def list_runs(folder: SuperLinkFolder) -> list[Mapping[str, Any]]:
    """Return Flower's records of the runs."""
    return entries_told(ask(folder, "ls", CONNECTION, "--format", "json"), "runs")


def read_runs(folder: Path) -> list[RunStatus]:
    """Return the status of the runs in a folder, by name."""
    statuses = []
    for path in sorted(folder.glob("*")):
        try:
            run = load_run(path)
            rejected = [e for e in run.events() if e.get("kind") == REJECTED]
        except FedsuiteError:
            continue
        score = main_score(run.experiment)
        means = run.column(f"{score.column}_mean")[1].tolist()
        statuses.append(
            RunStatus(
                path.name,
                status_of(path),
                run.last_round,
                int(run.experiment.get("num-rounds", 0)),
                f"{score.title} {score.shown(means[-1])}" if means else "",
                Counter(str(event.get("cause", "")) for event in rejected),
                str(rejected[-1].get("reason")) if rejected else "",
                str(run.manifest.get("flwr_run_id", "")),
            )
        )
    return statuses


def federation_tables(folder: SuperLinkFolder, runs: Sequence[RunStatus]) -> list["Table"]:
    """Return the tables of what the SuperLink knows, for a console.

    Flower takes a run for running until a minute after its ServerApp was killed, and its
    folder tells at once.
    """
    killed = {run.number for run in runs if run.status == "killed"}
    known = [
        (number, "killed" if number in killed and status == "running" else status)
        for number, status in (
            (str(run.get("run-id", "")), str(run.get("status", "")))
            for run in list_runs(folder)
        )
    ]
    states = _states(folder)
    rows = [*_named(folder, states), *_strangers(folder, states)]
    return [
        _table("Nodes", ("name", "status"), rows),
        _table("Runs that the SuperLink knows", ("run", "status"), known),
    ]


def results_table(folder: Path, runs: Sequence[RunStatus]) -> "Table":
    """Return the table of the runs in a folder, for a console."""
    return _table(
        f"Results in {folder}",
        ("run", "status", "round", "mean over clients", "replies not used", "the last one"),
        [_cells(run) for run in runs],
    )


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        # Text, because names and reasons may hold a console's markup.
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table


def _cells(run: RunStatus) -> tuple[str, ...]:
    done = f"{run.rounds} of {run.planned}"
    causes = ", ".join(f"{count} {cause}" for cause, count in run.rejected.most_common())
    return run.name, run.status, done, run.score, causes or "none", run.last_reason
