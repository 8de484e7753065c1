"""Diagrams of the concepts: boxes and arrows on a grid, as SVG in the text's colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLUMN, LINE = 200, 96
WIDTH, HEIGHT = 158, 56


@dataclass(frozen=True)
class Box:
    """A box at a column and a line of the grid.

    Parameters
    ----------
    column, line
        Place; parts of one are allowed.
    title, note
        Text inside, in large and in small letters.
    dashed
        Whether the frame is dashed: something that goes away.
    """

    column: float
    line: float
    title: str
    note: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, by their titles.

    Parameters
    ----------
    start, end
        Titles.
    label
        Text beside the middle.
    """

    start: str
    end: str
    label: str = ""


Diagram = tuple[Sequence[Box], Sequence[Arrow]]

DIAGRAMS: dict[str, Diagram] = {
    "round": (
        [
            Box(0, 0, "Strategy", "samples clients"),
            Box(2, 0, "Clients", "train on own rows"),
            Box(2, 1, "Reply reader", "checks each reply"),
            Box(0, 1, "Aggregation", "in the clients' order"),
            Box(1, 2, "Checkpoint", "model, state, metrics"),
        ],
        [
            Arrow("Strategy", "Clients", "request: model, settings"),
            Arrow("Clients", "Reply reader", "reply"),
            Arrow("Reply reader", "Aggregation", "good replies"),
            Arrow("Aggregation", "Strategy", "next model"),
            Arrow("Aggregation", "Checkpoint"),
        ],
    ),
    "nodes": (
        [
            Box(1, 0, "Server", "knows clients 0 to 4"),
            Box(0, 1, "Node A", "one process"),
            Box(2, 1, "Node B", "one process"),
            Box(0, 2, "Clients 0, 2, 4", "rows and state each"),
            Box(2, 2, "Clients 1, 3", "rows and state each"),
        ],
        [
            Arrow("Server", "Node A", "one message"),
            Arrow("Server", "Node B", "one message"),
            Arrow("Node A", "Clients 0, 2, 4", "an entry per client"),
            Arrow("Node B", "Clients 1, 3", "an entry per client"),
        ],
    ),
    "engines": (
        [
            Box(1, 0, "Strategy", "same code"),
            Box(0, 1, "local", "one process"),
            Box(1, 1, "ray", "Flower's simulation"),
            Box(2, 1, "deployment", "real SuperNodes"),
            Box(1, 2, "ClientApp", "same code"),
        ],
        [
            Arrow("Strategy", "local", "Grid"),
            Arrow("Strategy", "ray", "Grid"),
            Arrow("Strategy", "deployment", "Grid"),
            Arrow("local", "ClientApp"),
            Arrow("ray", "ClientApp"),
            Arrow("deployment", "ClientApp"),
        ],
    ),
    "records": (
        [
            Box(0, 0, "Request", "type train"),
            Box(1, 0, "arrays", "ArrayRecord, shared"),
            Box(2, 0, "config", "ConfigRecord"),
            Box(0, 1, "Reply", "type train"),
            Box(1, 1, "client-3.arrays", "ArrayRecord"),
            Box(2, 1, "client-3.metrics", "MetricRecord"),
        ],
        [
            Arrow("Request", "arrays"),
            Arrow("arrays", "config"),
            Arrow("Reply", "client-3.arrays"),
            Arrow("client-3.arrays", "client-3.metrics"),
        ],
    ),
    "state": (
        [
            Box(0, 0, "Round 4", "client state 4.1"),
            Box(1, 0, "Round 5", "client state 5.1"),
            Box(2, 0, "Round 6", "client state 6.1", dashed=True),
            Box(1, 1, "Checkpoint 5", "names versions 5.1"),
            Box(2, 1, "Resumed run", "starts from 5.1"),
        ],
        [
            Arrow("Round 4", "Round 5"),
            Arrow("Round 5", "Round 6"),
            Arrow("Round 5", "Checkpoint 5"),
            Arrow("Checkpoint 5", "Resumed run"),
        ],
    ),
}
"""Boxes and arrows by name of the file."""


def _edge(box: Box, other: Box) -> tuple[float, float]:
    """Return the point of a box's frame that faces another box."""
    x, y = _centre(box)
    if abs(other.column - box.column) * COLUMN > abs(other.line - box.line) * LINE * 1.2:
        return x + WIDTH / 2 * (1 if other.column > box.column else -1), y
    return x, y + HEIGHT / 2 * (1 if other.line > box.line else -1)


def _centre(box: Box) -> tuple[float, float]:
    return box.column * COLUMN + COLUMN / 2, box.line * LINE + LINE / 2


def _text(x: float, y: float, text: str, size: int, anchor: str = "middle") -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="currentColor" stroke="none">{escape(text)}</text>'


_HEAD = """<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"
markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor" stroke="none"/>
</marker></defs>"""


def svg(diagram: Diagram, label: str) -> str:
    """Return a diagram as SVG, with a label for those who cannot see it."""
    boxes, arrows = diagram
    named = {box.title: box for box in boxes}
    width = (max(box.column for box in boxes) + 1) * COLUMN
    height = (max(box.line for box in boxes) + 1) * LINE
    frame = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px;width:100%"'
    seen = f'role="img" aria-label="{escape(label)}" fill="none" stroke="currentColor"'
    parts = [f"<svg {frame} {seen}>", _HEAD]
    for arrow in arrows:
        start, end = named[arrow.start], named[arrow.end]
        (x1, y1), (x2, y2) = _edge(start, end), _edge(end, start)
        line = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
        parts.append(f'<line {line} marker-end="url(#head)"/>')
        if arrow.label:
            vertical = x1 == x2
            at = ((x1 + x2) / 2 + 6 * vertical, (y1 + y2) / 2 - 6 * (not vertical))
            parts.append(_text(*at, arrow.label, 11, "start" if vertical else "middle"))
    for box in boxes:
        x, y = _centre(box)
        frame = f'x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" rx="6"'
        dash = ' stroke-dasharray="5 4"' if box.dashed else ""
        parts.append(f'<rect {frame} width="{WIDTH}" height="{HEIGHT}"{dash}/>')
        parts.append(_text(x, y - 3 if box.note else y + 5, box.title, 15))
        parts.append(_text(x, y + 16, box.note, 11))
    return "\n".join([*parts, "</svg>"])


def write_diagrams(folder: Path) -> None:
    """Write all diagrams into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, diagram in DIAGRAMS.items():
        label = "; ".join(f"{a.start} to {a.end}" for a in diagram[1])
        (folder / f"{name}.html").write_text(svg(diagram, label))
