"""How a federation stands, from what Flower tells and from the folders of runs."""

import json
from pathlib import Path

import pytest

from fedsuite.deploy import programs, status
from fedsuite.deploy.folders import SuperLinkFolder, init_federation
from tests.results.made_runs import make_run


@pytest.fixture
def folder(tmp_path: Path) -> SuperLinkFolder:
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a", "b", "c"], days=2)
    return SuperLinkFolder.load(tmp_path / "fed" / "superlink")


def answers(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, str]]) -> list[str]:
    """Let Flower know these nodes; return the names that are registered meanwhile."""
    registered: list[str] = []

    def ask(folder: SuperLinkFolder, *words: str) -> str:
        if words[:2] == ("supernode", "list"):
            return json.dumps({"success": True, "nodes": nodes})
        if words[:2] == ("supernode", "register"):
            registered.append(words[words.index("--name") + 1])
            assert Path(words[2]).read_text().endswith(f" {registered[-1]}\n")
            return f'done\n{{"success": true, "node-id": {100 + len(registered)}}}\n'
        return json.dumps({"runs": [{"run-id": "7", "status": "running"}]})

    monkeypatch.setattr(programs, "ask", ask)
    monkeypatch.setattr(status, "ask", ask)
    return registered


def test_keys_are_let_in_once(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, str]] = []
    registered = answers(monkeypatch, nodes)
    assert programs.register_nodes(folder) == ["a", "b", "c"]
    nodes += [
        {"node-id": "101", "status": "online"},
        {"node-id": "102", "status": "offline"},
    ]
    # The SuperLink's database does not have node c any more.
    assert programs.register_nodes(folder) == ["c"]
    assert registered == ["a", "b", "c", "c"]
    nodes.append({"node-id": "104", "status": "registered"})
    assert programs.register_nodes(folder) == []
    assert status.list_nodes(folder) == [
        ("a", "online"),
        ("b", "offline"),
        ("c", "registered"),
    ]


def test_nodes_that_were_never_let_in(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, [{"node-id": "55", "status": "online"}])
    assert {state for _, state in status.list_nodes(folder)} == {"not registered"}


def test_runs_with_their_last_round_and_what_was_not_used(
    folder: SuperLinkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    answers(monkeypatch, [])
    runs = tmp_path / "runs"
    made = make_run(runs / "one", accuracies=((0.5, 0.7), (0.6, 0.9)), status="running")
    made.append(
        "events",
        [
            {"round": 1, "kind": "rejected-reply", "client": 0, "reason": "NaN"},
            {"round": 2, "kind": "rejected-reply", "client": 1, "reason": "[red]late"},
            {"round": 2, "kind": "warning", "reason": "other"},
        ],
    )
    make_run(runs / "two", accuracies=())
    (runs / "no-run").mkdir()
    one, two = status.read_runs(runs)
    assert (one.name, one.status, one.rounds, one.planned) == ("one", "running", 2, 3)
    assert one.accuracy == pytest.approx(0.75)
    assert (one.rejected, one.last_reason) == (2, "[red]late")
    assert (two.rounds, two.accuracy, two.rejected) == (0, None, 0)
    console = Console(width=140, record=True)
    for table in status.tables(folder, runs):
        console.print(table)
    text = console.export_text()
    assert "75.00 %" in text and "2 of 3" in text and "[red]late" in text
    assert "not registered" in text and "running" in text


def test_a_folder_without_runs(tmp_path: Path) -> None:
    assert status.read_runs(tmp_path / "nowhere") == []
