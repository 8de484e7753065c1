"""Summary and printed tables at the end of a run."""

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.metrics import FairnessReport, fairness_report, same_tails
from fedsuite.core.reading import bounded, read_arrays
from fedsuite.results.layout import BEST_MODEL, SUMMARY, read_releases
from fedsuite.results.networks import NetworkAccuracy, accuracy_by_network
from fedsuite.results.reader import Run, Scores, load_run
from fedsuite.results.writer import RunFolder

_ROWS = (
    ("mean accuracy", "mean", "%"),
    ("worst 5 %", "worst_5", "%"),
    ("worst 10 %", "worst_10", "%"),
    ("best 5 %", "best_5", "%"),
    ("best 10 %", "best_10", "%"),
    ("variance", "variance", "%²"),
    ("standard deviation", "std", "%"),
    ("coefficient of variation", "coefficient_of_variation", ""),
    ("angle", "angle", "°"),
    ("KL to uniform", "kl", ""),
    ("Jain's index", "jain", ""),
    ("Gini coefficient", "gini", ""),
)


def write_summary(folder: RunFolder) -> None:
    """Write ``summary.json`` of a run with complete JSON-lines files."""
    run = load_run(folder.path)
    last = run.rounds[-1] if run.rounds else {}
    summary: dict[str, object] = {
        "rounds": last.get("round", 0),
        "accuracy_in_per_cent": _over_clients(last_scores(run, "accuracy")),
    }
    if validation := _over_clients(last_scores(run, "validation_accuracy")):
        summary["validation_accuracy_in_per_cent"] = validation
    if networks := accuracy_by_network(run):
        by_network = {n.label: 100 * n.accuracy for n in networks}
        summary["accuracy_in_per_cent_by_network"] = by_network
    if sentence := _privacy(run):
        summary["privacy"] = sentence
    with suppress(RunError):  # told with the tables
        if best := _best_model(folder.path):
            summary["best_model"] = best
    folder.write_json(SUMMARY, {**summary, **totals(run), "last_round": last})


def tell_summary(path: Path, write: Callable[[str], None]) -> None:
    """Print the tables of a run that has ended."""
    run = load_run(path)
    scores = last_scores(run, "accuracy")
    networks = accuracy_by_network(run)
    lines = []
    if scores.of:
        lines += render_report(fairness_report(scores.percent), scores.short).splitlines()
    elif scores.short:
        lines.append(f"No accuracy over clients: {scores.short} have a score")
    if networks:
        whole = accuracy_by_network(run, column="whole_test_accuracy")
        lines += render_networks(networks, whole).splitlines()
    if sentence := _privacy(run):
        lines.append(sentence)
    for line in lines:
        write(line)
    if best := _best_model(path):
        value = f"{best['metric']} = {best['value']:.6g}"
        write(f"best model: that of round {best['round']}, by {value}")


def last_scores(run: Run, column: str) -> Scores:
    """Return the scores of a run's last evaluation; of no client where there was none."""
    return (run.scores(column) or [Scores(0, {}, 0)])[-1]


def _best_model(folder: Path) -> dict[str, Any]:
    """Return round, metric and value of a run's best model; empty without one.

    Raises
    ------
    RunError
        If the file does not name them.
    """
    path = folder / BEST_MODEL
    try:
        _, note = read_arrays(path)
        choice = bounded(note)
        value = float(choice["value"])
        return {"round": choice["round"], "metric": choice["metric"], "value": value}
    except FileNotFoundError:
        return {}
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def _over_clients(scores: Scores) -> dict[str, int | float] | None:
    """Return the fairness metrics of scores; None of none."""
    asked = {"num_asked": scores.num_asked} if scores.short else {}
    if not scores.of:
        return None
    return {**fairness_report(scores.percent).as_dict(), **asked}


def _privacy(run: Run) -> str:
    """Return what the last noised release says of its epsilon; empty without noise."""
    releases = read_releases(run.path)
    return str(releases[-1]["sentence"]) if releases else ""


def totals(run: Run) -> dict[str, float]:
    """Return sums over all rounds."""
    names = ("bytes_down", "bytes_up", "seconds", "replies_rejected")
    times = ("cpu_seconds", "evaluation_cpu_seconds")
    return {
        f"total_{name}": sum(row.get(name) or 0 for row in run.rounds)
        for name in (*names, *times)
    }


def render_report(report: FairnessReport, short: str = "") -> str:
    """Return a fairness report as a table of text.

    ``short`` says how many clients have a score, where not all have: ``5 of 8 clients``.
    """
    over = short or f"{report.num_clients} clients"
    table = Table(title=f"Accuracy over {over}", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("unit")
    values = report.as_dict()
    for label, name, unit in _ROWS:
        if name.endswith("_5") and same_tails(report.num_clients):
            continue
        digits = 2 if unit else 4
        table.add_row(label, f"{values[name]:.{digits}f}", unit)
    return _text(table)


def render_networks(
    networks: Sequence[NetworkAccuracy], whole: Sequence[NetworkAccuracy] = ()
) -> str:
    """Return a table of text of accuracies on own test rows and the whole test part."""
    on_whole = {network.label: f"{100 * network.accuracy:.2f}" for network in whole}
    table = Table(title="Mean accuracy by network", title_justify="left")
    # A label names the network: it may be broken, never cut off.
    table.add_column("network", overflow="fold")
    headings = ["parameters", "clients", "accuracy in %"]
    for heading in headings + ["whole test in %"] * bool(whole):
        table.add_column(heading, justify="right", no_wrap=True)
    for network in networks:
        counts = f"{network.num_parameters:,}", str(network.num_clients)
        cells = [*counts, f"{100 * network.accuracy:.2f}"]
        cells += [on_whole.get(network.label, "")] * bool(whole)
        table.add_row(Text(one_line(network.label)), *cells)
    return _text(table)


def _text(table: Table) -> str:
    # In the encoding of the output, for its frame must be of characters that it has.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = io.TextIOWrapper(io.BytesIO(), encoding, "replace")
    Console(file=text, width=80, force_terminal=False).print(table)
    text.seek(0)
    return text.read().rstrip()
