"""The figure that answers a comparison: paired differences with their intervals."""

import textwrap
from typing import Any

from fedsuite.results.compare import Comparison
from fedsuite.results.plots import PALETTE
from fedsuite.results.report.figures import CLASS_COLOURS, Data, Figure
from fedsuite.results.report.values import label, rounded, words
from fedsuite.results.verdict import MEAN, Verdict

GREY = CLASS_COLOURS[-1]
LINE = "rgba(128,128,128,0.9)"
SHADE = "rgba(128,128,128,0.2)"
HEIGHT = 110
"""Pixels beside the rows."""

ROW = 34
"""Pixels of a row."""


def forest_figure(comparison: Comparison, answer: Verdict) -> list[Figure]:
    """Return the differences of the mean score from the baseline, the best on top."""
    score = comparison.score
    rows = [
        (difference, paired)
        for difference in answer.differences
        if (paired := difference.metrics[MEAN]) is not None
    ]
    if not rows:
        return []
    rows.sort(key=lambda row: score.gain(row[1].mean))
    names = [_wrapped(difference.label) for difference, _ in rows]
    halves = [paired.half or 0.0 for _, paired in rows]
    colours = [
        GREY if difference.label in comparison.placebos else PALETTE[0]
        for difference, _ in rows
    ]
    data: Data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [rounded(paired.mean)],
            "y": [name],
            "error_x": {"type": "data", "array": [rounded(half)], "color": shade},
            "marker": {"size": 10, "symbol": "square", "color": shade},
            "showlegend": False,
            "hovertemplate": f"{label(paired.intervals)}<extra></extra>",
        }
        for (_, paired), name, half, shade in zip(rows, names, halves, colours, strict=True)
    ]
    shapes: list[dict[str, Any]] = [
        {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper"}
        | {"line": {"color": LINE, "width": 1.5, "dash": "dash"}}
    ]
    notes = ["Whiskers: 95 % intervals over pairs of the same seed and partition."]
    if any(paired.corrected is not None for _, paired in rows):
        notes.append("They are the corrected ones of Nadeau and Bengio.")
    if any(paired.half is None for _, paired in rows):
        notes.append("A mark without whiskers is one pair: it shows no difference.")
    if (spread := answer.placebo_spread) is not None:
        shapes.append(
            {"type": "rect", "x0": -spread, "x1": spread, "y0": 0, "y1": 1, "yref": "paper"}
            | {"fillcolor": SHADE, "line": {"width": 0}, "layer": "below"}
        )
        notes.append("Shaded: the largest difference of a placebo on one seed; grey marks.")
    if not score.higher:
        notes.append(f"Lower {score.title} is better.")
    if missing := [row.label for row in comparison.rows if row.incomplete]:
        labels = ", ".join(map(words, missing))
        notes.append(f"Not drawn, for their means are over fewer clients: {labels}.")
    breaks = sum(name.count("<br>") for name in names)
    return [
        Figure(
            section="compare",
            title=f"Mean {score.title} minus that of {words(comparison.baseline)}",
            data=data,
            x=f"difference in {score.points or score.title}",
            y="",
            note=" ".join(notes),
            layout={
                "hovermode": "closest",
                "shapes": shapes,
                "yaxis": {"type": "category"},
            },
            height=HEIGHT + ROW * len(rows) + 12 * breaks,
        )
    ]


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, 22) or [""]
    more = ["…"] if len(lines) > 4 else []
    return "<br>".join(label(part) for part in [*lines[:4], *more])
