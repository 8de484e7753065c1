"""The page of an audit of privacy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsuite.core.files import atomic_write
from fedsuite.core.vectors import Vector
from fedsuite.results import analysis_files
from fedsuite.results.plots import PALETTE
from fedsuite.results.privacy import Attack, Cosines, Findings, NoiseAudit
from fedsuite.results.report import as_html
from fedsuite.results.report.figures import DASHES, Data, Figure
from fedsuite.results.report.sections import Page, Section, View, filled
from fedsuite.results.report.values import Table, rounded, table, words

NOISE, MEMBERSHIP = "noise", "membership"

_BINS = 40
_POINTS = 200
_LEAST = 1e-4
"""Least share of the logarithmic axes."""


def write_privacy_page(
    findings: Findings, title: str, subtitle: str, command: str, output: Path
) -> None:
    """Write the page of an audit as HTML.

    Parameters
    ----------
    findings
        The audit.
    title, subtitle
        Headings.
    command
        The command that repeats it.
    output
        The file, which is replaced as a whole.
    """
    figures: list[Figure] = []
    noise, membership = Section(NOISE, "Noise"), Section(MEMBERSHIP, "Membership")
    if findings.noise is not None:
        noise.tables.append(_table("Epsilon by canaries", findings.noise_table()))
        noise.notes.append(_population(findings.noise))
        figures += [_histogram(*pair) for pair in findings.noise.releases.items()]
    if findings.attacks:
        shown = findings.attack_table()
        membership.tables.append(_table("Rows told from rows held out", shown))
        figures.append(_curves(findings.attacks))
    repeat = Section("repeat", "Repeat it", commands={"The same audit": command})
    sections = (noise, membership, repeat)
    view = View("", words(title), tuple(map(words, findings.sentences())))
    page = filled(Page({"": view}, words(subtitle), {}, sections, tuple(figures)))
    atomic_write(output, as_html(page).encode())


def _table(caption: str, numbers: analysis_files.Table) -> Table:
    return table(caption, numbers.columns, numbers.rows, numbers.note)


def _population(noise: NoiseAudit) -> str:
    count = len(noise.final.used)
    return (
        f"{count} canaries took part beside the run's {noise.clients} clients, drawn as "
        "they are. Each holds another client's rows, and sends a random direction of the "
        "clipping norm. In the mean the clients' part is smaller by as much, and so is the "
        "noise: what one client moves against the noise is the same."
    )


def _histogram(name: str, cosines: Cosines) -> Figure:
    ends = np.histogram_bin_edges(np.concatenate([cosines.used, cosines.unused]), _BINS)
    data = [
        {
            "type": "bar",
            "name": what,
            "x": [rounded(middle) for middle in (ends[:-1] + ends[1:]) / 2],
            "y": np.histogram(values, ends)[0].tolist(),
            "marker": {"color": colour},
            "opacity": 0.6,
        }
        for what, values, colour in (
            ("canaries", cosines.used, PALETTE[1]),
            ("directions never used", cosines.unused, PALETTE[0]),
        )
    ]
    layout = {"barmode": "overlay", "bargap": 0.0}
    title = f"Cosines of directions: {name}"
    note = "The farther the two lie apart, the more one client shows."
    return Figure(NOISE, title, data, "cosine", "directions", note, layout)


def _curves(attacks: Mapping[tuple[str, str], Attack]) -> Figure:
    shares = np.geomspace(_LEAST, 1.0, _POINTS)
    models = list(dict.fromkeys(model for model, _ in attacks))
    hows = list(dict.fromkeys(how for _, how in attacks))
    data: Data = [_line("guessing", shares, shares, "#999999", DASHES[2])]
    for (model, how), attack in attacks.items():
        heights = np.array([attack.curve.at(share) for share in shares])
        colour, dash = PALETTE[models.index(model)], DASHES[hows.index(how)]
        data.append(_line(f"{model}, {how}", shares, heights, colour, dash))
    axis = {"type": "log", "range": [np.log10(_LEAST), 0], "dtick": 1, "tickformat": "~g"}
    return Figure(
        MEMBERSHIP,
        "Rows trained on that an attack finds",
        data,
        "false positives (share of rows held out)",
        "true positives (share of rows trained on)",
        "Both axes are logarithmic: what matters is whom an attack is sure of.",
        {"xaxis": axis, "yaxis": axis},
        height=460,
    )


def _line(name: str, x: Vector, y: Vector, colour: str, dash: str) -> dict[str, object]:
    drawn: Sequence[float] = np.maximum(y, _LEAST / 10).tolist()
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [rounded(value) for value in x.tolist()],
        "y": [rounded(value) for value in drawn],
        "line": {"color": colour, "dash": dash, "width": 2},
    }
