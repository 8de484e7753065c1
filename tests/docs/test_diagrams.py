"""Diagrams of the concepts' pages are well-formed, and their boxes do not touch."""

from itertools import combinations
from xml.etree import ElementTree

import pytest

from tests.docs import pages as _  # noqa: F401 - puts docs/ on the path


def test_an_arrow_meets_the_frames_that_face_each_other() -> None:
    from diagrams import HEIGHT, WIDTH, Arrow, Box, svg

    drawn = ElementTree.fromstring(
        svg(([Box(0, 0, "a"), Box(1, 0, "b & c")], [Arrow("a", "b & c", "x")]), "a to b")
    )
    (line,) = drawn.findall("line")
    assert [float(line.attrib[name]) for name in ("x1", "y1", "x2", "y2")] == [
        100 + WIDTH / 2,
        48,
        300 - WIDTH / 2,
        48,
    ]
    assert drawn.attrib["aria-label"] == "a to b"
    assert [text.text for text in drawn.findall("text")] == ["x", "a", None, "b & c", None]
    assert HEIGHT < 96


@pytest.mark.parametrize("name", ["round", "nodes", "engines", "records", "state"])
def test_every_diagram_is_whole(name: str) -> None:
    from diagrams import DIAGRAMS, svg

    boxes, arrows = DIAGRAMS[name]
    drawn = ElementTree.fromstring(svg(DIAGRAMS[name], name))
    assert len(drawn.findall("rect")) == len(boxes)
    assert len(drawn.findall("line")) == len(arrows)
    for box, other in combinations(boxes, 2):
        assert abs(box.column - other.column) >= 1 or abs(box.line - other.line) >= 1
