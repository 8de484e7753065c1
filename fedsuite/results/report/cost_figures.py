"""Figures of what rounds cost."""

from collections.abc import Sequence

import numpy as np

from fedsuite.core.errors import RunError
from fedsuite.core.tasks import Score
from fedsuite.results.cost_curves import cost_curve
from fedsuite.results.groups import Group
from fedsuite.results.report.figures import Data, Figure, line
from fedsuite.results.report.thinning import drawn_positions, most_points
from fedsuite.results.report.values import label, rounded, words

_NOTE = {
    "MB": "Payload of training, of all clients together, in both directions.",
    "seconds": "Time of training, without evaluation. Only times on one machine, under one "
    "load, can be compared.",
    "virtual hours": "Time in the world of the key devices, in which nothing was measured.",
}


def cost_figures(groups: Sequence[Group], score: Score) -> list[Figure]:
    """Return the mean score against bytes and against seconds, one curve per experiment."""
    most = most_points(len(groups))
    data: dict[str, Data] = {unit: [] for unit in _NOTE}
    notes = dict(_NOTE)
    for index, group in enumerate(groups):
        try:
            curve = cost_curve(group, f"{score.column}_mean")
        except RunError:  # it has no such score
            continue
        places = drawn_positions(curve.accuracies, most)
        rounds = curve.rounds.tolist()
        shown = (curve.megabytes, curve.costs["seconds"], curve.costs["virtual h"])
        for unit, costs in zip(_NOTE, shown, strict=True):
            if np.isfinite(costs).all() and costs[-1] > 0:
                values = score.factor * curve.accuracies
                trace = line(label(group.label), rounds, values, index, most)
                trace["x"] = [rounded(float(costs[place])) for place in places]
                trace["text"] = [f"round {rounds[place]}" for place in places]
                trace["hovertemplate"] = "%{y:.4~g} at %{x:.4~g}, %{text}"
                data[unit].append(trace)
            elif np.isfinite(costs).all() and unit == "MB":
                notes[unit] += f" {words(group.label)} sends nothing."
    titles = {"MB": "traffic", "seconds": "time", "virtual hours": "virtual time"}
    return [
        Figure(
            section="curves",
            title=f"Mean {score.title} against {titles[unit]}",
            data=traces,
            x=unit,
            y=score.label,
            note=notes[unit],
            layout={"hovermode": "closest", "xaxis": {"rangemode": "tozero"}},
            curves=True,
        )
        for unit, traces in data.items()
        if traces
    ]
