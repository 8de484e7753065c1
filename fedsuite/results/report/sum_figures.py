"""Figures of what rounds cost: traffic, time, and replies that were not used."""

from collections.abc import Sequence

from fedsuite.results.groups import Group
from fedsuite.results.panels import by_seed, pooled_curve
from fedsuite.results.report.figures import DASHES, Data, Figure, line
from fedsuite.results.report.thinning import most_points, thinning_note
from fedsuite.results.report.values import label

SUMS = (
    (
        *("traffic", "Traffic of each round", "MB"),
        (("bytes_down", "down"), ("bytes_up", "up")),
        1e-6,
    ),
    (
        *("time", "Time of each round", "seconds"),
        (
            ("seconds", "wall clock"),
            ("cpu_seconds", "processor of the server, training"),
            ("evaluation_cpu_seconds", "processor of the server, evaluation"),
            ("seconds_evaluate", "evaluation"),
        ),
        1.0,
    ),
    (
        *("replies", "Replies that were not used", "replies"),
        (("replies_rejected", "not used"),),
        1.0,
    ),
)
"""Section, title, unit, columns of ``rounds.jsonl`` with their names, and scale."""


def sum_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return traffic, time and refused replies against rounds, means over seeds."""
    figures = []
    most = most_points(len(groups))
    for section, title, unit, columns, scale in SUMS:
        data: Data = []
        longest = 0
        for index, group in enumerate(groups):
            traces = _traces(group, columns, scale, most)
            for place, (rounds, trace) in enumerate(traces):
                longest = max(longest, rounds)
                data.append(_styled(trace, group, index, place, len(groups)))
        used = section == "replies" and not any(any(trace["y"]) for trace in data)
        if data and not used:
            layout = {"yaxis": {"title": {"text": unit}, "rangemode": "tozero"}}
            note = thinning_note(longest, most)
            figures.append(Figure(section, title, data, "round", unit, note, layout))
    return figures


def _traces(
    group: Group, columns: Sequence[tuple[str, str]], scale: float, most: int
) -> list[tuple[int, dict[str, object]]]:
    """Return the number of rounds and the curve of each column that the runs have."""
    traces = []
    for place, (column, what) in enumerate(columns):
        curves = [{column: pooled_curve(run, column)} for run in group.runs]
        rounds, values = by_seed(curves, column)
        if rounds:
            trace = line(what, rounds, scale * values.mean(axis=0), place, most)
            traces.append((len(rounds), trace))
    return traces


def _styled(
    trace: dict[str, object], group: Group, index: int, place: int, num_groups: int
) -> dict[str, object]:
    """Return a curve that tells the experiments apart where there are several."""
    if num_groups == 1:
        return trace
    plain = line(f"{label(group.label)}: {trace['name']}", [], [], index)
    style = {**plain["line"], "dash": DASHES[place % len(DASHES)]}
    return {**trace, "name": plain["name"], "line": style}
