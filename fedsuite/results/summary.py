"""Summary and printed tables at the end of a run."""

import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.metrics import (
    fairness_report,
    of_clients,
    same_tails,
    tail_words,
)
from fedsuite.core.reading import bounded, read_arrays
from fedsuite.core.tasks import ACCURACY, SCORES, Score
from fedsuite.messages.records import EVALUATE, NEW
from fedsuite.results.layout import BEST_MODEL, SUMMARY, read_releases
from fedsuite.results.networks import NetworkAccuracy, accuracy_by_network
from fedsuite.results.reader import Run, Scores, load_run
from fedsuite.results.score import main_score, task_of
from fedsuite.results.writer import RunFolder

_ROWS = (
    ("mean {}", "mean", "{}"),
    ("worst", "worst_5", "{}"),
    ("worst", "worst_10", "{}"),
    ("best", "best_5", "{}"),
    ("best", "best_10", "{}"),
    ("variance", "variance", "{}²"),
    ("standard deviation", "std", "{}"),
    ("coefficient of variation", "coefficient_of_variation", ""),
    ("angle", "angle", "°"),
    ("KL to uniform", "kl", ""),
    ("Jain's index", "jain", ""),
    ("Gini coefficient", "gini", ""),
)


_MOST_NEW = 20
"""New clients that the screen lists."""

_HOPELESS = 100.0
"""Mean cross-entropy of models that learn no more."""

_GROWTH = 1000.0
"""Factor by which a loss without a known scale has exploded."""


def write_summary(folder: RunFolder) -> None:
    """Write ``summary.json`` of a run with complete JSON-lines files."""
    run = load_run(folder.path)
    last = run.rounds[-1] if run.rounds else {}
    main = main_score(run.experiment)
    summary: dict[str, object] = {"rounds": last.get("round", 0), "main_score": main.column}
    accuracies = _over_clients(last_scores(run, ACCURACY.column))
    if accuracies or task_of(run.experiment).has_classes:
        summary["accuracy_in_per_cent"] = accuracies
    if validation := _over_clients(last_scores(run, "validation_accuracy")):
        summary["validation_accuracy_in_per_cent"] = validation
    if scores := further_scores(run):
        summary["scores"] = scores
    if remarks := remarks_on(run):
        summary["remarks"] = remarks
    if untested := clients_without_test_rows(run)[0]:
        summary["clients_without_test_rows"] = untested
    if new := new_clients(run):
        summary["new_clients"] = new
    if neighbours := [
        row["sum_neighbours"] for row in run.rounds if "sum_neighbours" in row
    ]:
        summary["neighbours_in_sums"] = int(neighbours[-1])
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
    main = main_score(run.experiment)
    scores = last_scores(run, main.column)
    networks = accuracy_by_network(run)
    lines = remarks_on(run) + _untested(run)
    if further := further_scores(run, main):
        lines += render_scores(further).splitlines()
    if scores.of:
        lines += render_report(scores).splitlines()
    elif scores.short:
        lines.append(f"No {main.title} over clients: {scores.short} have a score")
    if new := new_clients(run):
        lines += render_new_clients(new).splitlines()
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


def new_clients(run: Run) -> dict[str, dict[str, Any]]:
    """Return the scores of clients that never trained, at their last evaluation.

    By column of ``clients.jsonl``: title, unit, mean, the mean of those that trained, and
    ``of``, the score by client, in that unit. Empty where there are no such clients.
    """
    rows = [row for row in run.client_rows() if row["phase"] == NEW]
    by_column = {}
    for score in SCORES.values():
        if not any(score.column in row for row in rows):
            continue
        scores = run.scores(score.column, phase=NEW)[-1]
        trained = last_scores(run, score.column)
        by_column[score.column] = {
            "title": score.title,
            "unit": score.unit,
            "mean": fmean(scores.percent) if scores.of else None,
            "mean_of_trained": fmean(trained.percent) if trained.of else None,
            "of": {str(k): score.factor * number for k, number in scores.of.items()},
            "num_asked": scores.num_asked,
        }
    return by_column


def render_new_clients(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the scores of clients that never trained as a table of text."""
    columns = [f"{score['title']} {score['unit']}".rstrip() for score in scores.values()]
    clients = list(dict.fromkeys(k for score in scores.values() for k in score["of"]))
    lines = [["client", *columns]]
    for client in clients[:_MOST_NEW]:
        lines.append([client, *(_shown(s["of"].get(client)) for s in scores.values())])
    if len(clients) > _MOST_NEW:
        lines.append([f"and {len(clients) - _MOST_NEW} more", *("" for _ in columns)])
    counts = [(len(score["of"]), score["num_asked"]) for score in scores.values()]
    short = next((f", {of_clients(*c)}" for c in counts if c[0] < c[1]), "")
    for words, name in ((f"mean{short}", "mean"), ("mean, trained", "mean_of_trained")):
        lines.append([words, *(_shown(score[name]) for score in scores.values())])
    return _text("New clients (never trained)", lines)


def _shown(number: float | None, unit: str = "") -> str:
    return "\N{EN DASH}" if number is None else f"{number:.4g}{unit}"


def _best_model(folder: Path) -> dict[str, Any]:
    """Return round, metric and value of a run's best model; empty without one.

    Raises
    ------
    RunError
        If the file does not name them.
    """
    path = folder / BEST_MODEL
    if not path.exists():
        return {}
    try:
        _, note = read_arrays(path)
        choice = bounded(note)
        value = float(choice["value"])
        return {"round": choice["round"], "metric": choice["metric"], "value": value}
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def _over_clients(scores: Scores) -> dict[str, int | float] | None:
    """Return the fairness metrics of scores; None of none."""
    asked = {"num_asked": scores.num_asked} if scores.short else {}
    if not scores.of:
        return None
    return {**fairness_report(scores.percent, scores.score).as_dict(), **asked}


def further_scores(run: Run, main: Score = ACCURACY) -> dict[str, dict[str, Any]]:
    """Return what clients' scores beside the main one are at the last evaluation.

    By column of ``clients.jsonl``: title, unit, whether higher is better, mean, worst 10 %
    and standard deviation over clients in that unit, and how many clients have one.
    """
    rows = reversed(run.rounds)
    others = [score for score in SCORES.values() if score != main]
    last: dict[str, Any] = next((row for row in rows if _names_scores(row, others)), {})
    by_column = {}
    for score in others:
        if not _names_scores(last, [score]):
            continue
        scores = last_scores(run, score.column)
        report = fairness_report(scores.percent, score) if scores.of else None
        by_column[score.column] = {
            "title": score.title,
            "unit": score.unit,
            "higher_is_better": score.higher,
            "mean": report.mean if report else None,
            "worst_10": report.worst_10 if report else None,
            "std": report.std if report else None,
            "num_clients": len(scores.of),
            "num_asked": scores.num_asked,
        }
    return by_column


def _names_scores(row: Mapping[str, Any], scores: Sequence[Score]) -> bool:
    """Return whether a round has one of the scores."""
    names = ("mean", "clients")
    return any(f"{score.column}_{name}" in row for score in scores for name in names)


def remarks_on(run: Run) -> list[str]:
    """Return in a line each what is wrong with a run that looks alive.

    A run is remarked on whose models take all test rows for one class at the last
    evaluation, and one whose loss exploded in some round.
    """
    remarks = []
    evaluated = [row for row in run.rounds if row.get("evaluate_loss") is not None]
    if evaluated and (only := evaluated[-1].get("evaluate_one_class")) is not None:
        last = evaluated[-1]["round"]
        same = [row["round"] for row in evaluated if row.get("evaluate_one_class") == only]
        always = f"in {len(same)} of {len(evaluated)} evaluations"
        remarks.append(
            f"at round {last} the clients' models say class {only:.0f} of every test row, "
            f"{always}: their accuracy is that of always saying so; scale the columns, "
            "lower learning-rate, or set class-weights"
        )
    exploded = _exploded(run)
    if exploded is not None:
        remarks.append(
            f"at round {exploded['round']} the training loss was "
            f"{exploded['train_loss']:.4g}: it exploded; scale the columns, or lower "
            "learning-rate"
        )
    return remarks


def clients_without_test_rows(run: Run) -> tuple[int, int]:
    """Return how many clients of the last evaluation have no test rows, and of how many."""
    evaluated: dict[int, list[bool]] = {}
    for row in run.client_rows():
        if row["phase"] == EVALUATE:
            evaluated.setdefault(row["round"], []).append(row.get("num_examples") == 0)
    last = evaluated[max(evaluated)] if evaluated else []
    return sum(last), len(last)


def _untested(run: Run) -> list[str]:
    untested, count = clients_without_test_rows(run)
    if not untested:
        return []
    if untested == count:
        return ["no client has test rows: the run trains, and has no scores"]
    words = f"clients without test rows: {untested} of {count}"
    return [f"{words}; they train, and are in no score"]


def _exploded(run: Run) -> dict[str, Any] | None:
    """Return the first round whose training loss is out of all proportion, if any.

    A cross-entropy above 100 gives right classes a probability of e^-100. Of other losses
    nobody knows the unit: a thousand times the least loss so far.
    """
    by_class = task_of(run.experiment).has_classes
    least = math.inf
    for row in run.rounds:
        loss = row.get("train_loss")
        if loss is None:
            continue
        if loss > (_HOPELESS if by_class else max(_GROWTH * least, _GROWTH)):
            return row
        least = min(least, loss)
    return None


def render_scores(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return further scores as a table for a terminal or a log file."""
    most = max((score["num_clients"] for score in scores.values()), default=0)
    lines = [["score", "mean", tail_words("worst", 10, most), "deviation", "clients"]]
    for score in scores.values():
        unit = f" {score['unit']}".rstrip()
        better = "" if score["higher_is_better"] else " (less is better)"
        numbers = (_shown(score[name], unit) for name in ("mean", "worst_10", "std"))
        count, asked = score["num_clients"], score["num_asked"]
        short = f"{count} of {asked}" if count < asked else str(count)
        lines.append([f"{score['title']}{better}", *numbers, short])
    return _text("Scores over clients, each counting once", lines)


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


def render_report(scores: Scores) -> str:
    """Return the fairness report of an evaluation as a table of text."""
    score, report = scores.score, fairness_report(scores.percent, scores.score)
    over = scores.short or f"{report.num_clients} clients"
    better = "" if score.higher else ", less is better"
    lines = [["metric", "value", "unit"]]
    values = report.as_dict()
    of_score = score.digits(report.mean)
    for label, name, unit in _ROWS:
        if name.endswith("_5") and same_tails(report.num_clients):
            continue
        if math.isnan(values[name]):  # of a score that is no fraction
            continue
        digits = 2 if unit else 4
        if "{}" in unit:
            digits, unit = of_score, unit.format(score.unit) if score.unit else ""
        if label in ("worst", "best"):
            percent = int(name.removeprefix(f"{label}_"))
            label = tail_words(label, percent, report.num_clients)
        lines.append([label.format(score.title), f"{values[name]:.{digits}f}", unit])
    return _text(f"{score.heading} over {over}{better}", lines, left=(0, 2))


def render_networks(
    networks: Sequence[NetworkAccuracy], whole: Sequence[NetworkAccuracy] = ()
) -> str:
    """Return a table of text of accuracies on own test rows and the whole test part."""
    on_whole = {network.label: f"{100 * network.accuracy:.2f}" for network in whole}
    headings = ["network", "parameters", "clients", "accuracy in %"]
    lines = [headings + ["whole test in %"] * bool(whole)]
    for network in networks:
        counts = f"{network.num_parameters:,}", str(network.num_clients)
        cells = [network.label, *counts, f"{100 * network.accuracy:.2f}"]
        lines.append(cells + [on_whole.get(network.label, "")] * bool(whole))
    return _text("Mean accuracy by network", lines)


def _text(title: str, lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Return a table as text, the heading first; a name may be broken, never cut off."""
    table = Table(title=title, title_justify="left", min_width=len(title))
    for column, heading in enumerate(lines[0]):
        is_left = column in left
        justify: Literal["left", "right"] = "left" if is_left else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not is_left)
    for line in lines[1:]:
        table.add_row(*(Text(one_line(cell)) for cell in line))
    # In the encoding of the output, for its frame must be of characters that it has.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = io.TextIOWrapper(io.BytesIO(), encoding, "replace")
    Console(file=text, width=80, force_terminal=False).print(table)
    text.seek(0)
    return text.read().rstrip()
