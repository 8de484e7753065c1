"""Summary, plots and printed tables at the end of a run."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedsuite.core.extras import MissingExtraError, naming_extras
from fedsuite.core.files import safetensors_arrays, write_error
from fedsuite.core.metrics import FairnessReport, fairness_report
from fedsuite.results.layout import BEST_MODEL, LEDGER, PLOTS, SUMMARY, read_rows
from fedsuite.results.networks import NetworkAccuracy, accuracy_by_network
from fedsuite.results.reader import Run, load_run
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


def finish_folder(folder: RunFolder, write: Callable[[str], None]) -> None:
    """Write ``summary.json`` of a run with complete JSON-lines files; print its tables."""
    run = load_run(folder.path)
    last = run.rounds[-1] if run.rounds else {}
    report = _over_clients(run, "accuracy")
    validation = _over_clients(run, "validation_accuracy")
    networks = accuracy_by_network(run)
    whole = accuracy_by_network(run, column="whole_test_accuracy")
    summary: dict[str, object] = {
        "rounds": last.get("round", 0),
        "accuracy_in_per_cent": report.as_dict() if report else None,
    }
    if validation:
        summary["validation_accuracy_in_per_cent"] = validation.as_dict()
    if networks:
        by_network = {n.label: 100 * n.accuracy for n in networks}
        summary["accuracy_in_per_cent_by_network"] = by_network
    releases = list(read_rows(folder.path / LEDGER))
    privacy = [str(entry["sentence"]) for entry in releases[-1:]]
    if privacy:
        summary["privacy"] = privacy[0]
    best = _best_model(folder.path, write)
    if best:
        summary["best_model"] = best
    folder.write_json(SUMMARY, {**summary, **totals(run), "last_round": last})
    lines = render_report(report).splitlines() if report else []
    lines += render_networks(networks, whole).splitlines() if networks else []
    if best:
        value = f"{best['metric']} = {best['value']:.6g}"
        lines.append(f"best model: that of round {best['round']}, by {value}")
    for line in lines + privacy:
        write(line)


def _best_model(folder: Path, write: Callable[[str], None]) -> dict[str, Any]:
    """Return round, metric and value of a run's best model; empty without one."""
    path = folder / BEST_MODEL
    if not path.exists():
        return {}
    try:
        _, note = safetensors_arrays(path.read_bytes())
        choice = json.loads(note)
        return {name: choice[name] for name in ("round", "metric", "value")}
    except (OSError, LookupError, TypeError, ValueError) as error:
        write(f"the summary does not name the best model: cannot read {path}: {error}")
        return {}


def _over_clients(run: Run, column: str) -> FairnessReport | None:
    """Return the report on the last accuracies of all clients; None of none."""
    accuracies = run.client_values("evaluate", column)
    percent = [100 * a for a in accuracies.values() if 0 <= a <= 1]
    return fairness_report(percent) if percent else None


def draw_plots(folder: RunFolder, write: Callable[[str], None]) -> None:
    """Draw the plots of a run with complete JSON-lines files; tell where they cannot be."""
    try:
        with naming_extras("drawing"):
            # matplotlib takes a third of a second, which no run waits for before it begins.
            from fedsuite.results.plots import plot_run

        plot_run(folder.path)
    except MissingExtraError as error:
        write(f"no plots: {error}")
    except OSError as error:
        raise write_error(folder.path / PLOTS, error) from error


def totals(run: Run) -> dict[str, float]:
    """Return sums over all rounds."""
    names = ("bytes_down", "bytes_up", "seconds", "cpu_seconds", "replies_rejected")
    return {
        f"total_{name}": sum(row.get(name) or 0 for row in run.rounds) for name in names
    }


def render_report(report: FairnessReport) -> str:
    """Return a fairness report as a table of text."""
    table = Table(title=f"Accuracy over {report.num_clients} clients", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("unit")
    values = report.as_dict()
    for label, name, unit in _ROWS:
        digits = 2 if unit else 4
        table.add_row(label, f"{values[name]:.{digits}f}", unit)
    return _text(table)


def render_networks(
    networks: Sequence[NetworkAccuracy], whole: Sequence[NetworkAccuracy] = ()
) -> str:
    """Return a table of text of accuracies on own test rows and the whole test part."""
    on_whole = {found.label: f"{100 * found.accuracy:.2f}" for found in whole}
    table = Table(title="Mean accuracy by network", title_justify="left")
    # A label names the network: it may be broken, never cut off.
    table.add_column("network", overflow="fold")
    headings = ["parameters", "clients", "accuracy in %"]
    for heading in headings + ["whole test in %"] * bool(whole):
        table.add_column(heading, justify="right", no_wrap=True)
    for found in networks:
        counts = f"{found.num_parameters:,}", str(found.num_clients)
        cells = [*counts, f"{100 * found.accuracy:.2f}"]
        cells += [on_whole.get(found.label, "")] * bool(whole)
        table.add_row(escape(found.label), *cells)
    return _text(table)


def _text(table: Table) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()
