"""Which nodes a run waits for: named at once and again, until its first round."""

from pathlib import Path

import pytest

from fedsuite.core.errors import RunError
from fedsuite.deploy import missing_nodes
from fedsuite.deploy.folders import SuperLinkFolder, init_federation
from fedsuite.deploy.missing_nodes import MissingNodes


@pytest.fixture
def folder(tmp_path: Path) -> SuperLinkFolder:
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a", "b", "c"], days=2)
    return SuperLinkFolder.load(tmp_path / "fed" / "superlink")


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the nodes' states, which a test may change."""
    known = {"a": "online", "b": "offline", "c": "not registered"}
    monkeypatch.setattr(missing_nodes, "list_nodes", lambda _: list(known.items()))
    return known


def test_all_nodes_of_the_federation(
    folder: SuperLinkFolder, states: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines: list[str] = []
    nodes = MissingNodes(folder, (), lines.append)
    for _ in range(20):
        nodes.look()
    first = "not connected: b (offline), c (not registered); 1 of 3 nodes are"
    assert lines == [f"{first}: the run waits for the others"]
    now[0] += 29.7
    nodes.look()
    assert len(lines) == 1
    states["b"] = "online"
    now[0] += 0.6
    nodes.look()
    assert lines[1].startswith("not connected: c (not registered); 2 of 3")
    states["c"] = "online"
    now[0] += 31
    nodes.look()
    assert len(lines) == 2


def test_sites_that_the_run_names(folder: SuperLinkFolder, states: dict[str, str]) -> None:
    lines: list[str] = []
    MissingNodes(folder, ("a", "b", "clinic"), lines.append).look()
    assert lines[0].startswith(
        "not connected: b (offline), clinic (not registered); 1 of 3"
    )
    MissingNodes(folder, ("a",), lines.append).look()
    assert len(lines) == 1


def test_a_run_that_has_begun_tells_of_nodes_itself(
    folder: SuperLinkFolder, states: dict[str, str]
) -> None:
    lines: list[str] = []
    nodes = MissingNodes(folder, (), lines.append)
    nodes.hear("Waiting for nodes to connect: 1 connected (minimum required: 3).")
    nodes.hear("round 1 of 5  accuracy 50.00 %")
    nodes.look()
    assert lines == []


def test_a_superlink_that_does_not_answer_is_another_s_to_tell(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(_: object) -> None:
        asked.append(1)
        raise RunError("flwr supernode list failed")

    monkeypatch.setattr(missing_nodes, "list_nodes", refuse)
    nodes = MissingNodes(folder, (), pytest.fail)
    nodes.look()
    nodes.look()
    assert len(asked) == 1
