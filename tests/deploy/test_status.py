"""How a federation stands, from what Flower tells and from the folders of runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from fedsuite.deploy import programs, status
from fedsuite.deploy.commands import app
from fedsuite.deploy.folders import SuperLinkFolder, init_federation
from fedsuite.results.layout import read_manifest
from fedsuite.results.writer import RunFolder
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
    made = make_run(runs / "one", accuracies=((0.5, 0.7), (0.6, 0.9)), status="failed")
    made.append(
        "events",
        [
            {"round": 1, "kind": "rejected-reply", "cause": "late", "reason": "NaN"},
            {"round": 2, "kind": "rejected-reply", "cause": "late", "reason": "[red]late"},
            {"round": 2, "kind": "warning", "reason": "other"},
        ],
    )
    make_run(runs / "two", accuracies=())
    (runs / "no-run").mkdir()
    one, two = status.read_runs(runs)
    assert (one.name, one.status, one.rounds, one.planned) == ("one", "failed", 2, 3)
    assert one.score == "accuracy 75.00 %"
    assert (one.rejected, one.last_reason) == ({"late": 2}, "[red]late")
    assert (two.rounds, two.score, two.rejected) == (0, "", {})
    console = Console(width=140, record=True)
    for table in status.federation_tables(folder, [one, two]):
        console.print(table)
    console.print(status.results_table(runs, [one, two]))
    text = console.export_text()
    assert (
        "75.00 %" in text and "2 of 3" in text and "2 late" in text and "[red]late" in text
    )
    assert "not registered" in text and "running" in text


WRITER = """
import sys, time
from pathlib import Path
from fedsuite.results.writer import RunFolder
folder = RunFolder.create(
    Path(sys.argv[1]), {"method": "fedavg", "num-rounds": 3}, {"flwr_run_id": 7}
)
folder.append("rounds", [{"round": 1}])
print("begun", flush=True)
time.sleep(600)
"""


def test_a_killed_run_is_shown_as_killed(
    folder: SuperLinkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, [])
    run = tmp_path / "runs" / "one"
    command = [sys.executable, "-c", WRITER, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server_app:
        assert server_app.stdout is not None
        server_app.stdout.readline()
        found = status.read_runs(run.parent)
        assert [one.status for one in found] == ["running"]
        assert cells(status.federation_tables(folder, found)[1]) == [("7", "running")]
        server_app.kill()
    found = status.read_runs(run.parent)
    assert [one.status for one in found] == ["killed"]
    # Flower still takes it for running.
    assert cells(status.federation_tables(folder, found)[1]) == [("7", "killed")]
    # To look changes nothing.
    assert read_manifest(run)["status"] == "running"
    RunFolder.stop(run)
    assert status.read_runs(run.parent)[0].status == "stopped"


def cells(table: Table) -> list[tuple[str, ...]]:
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return list(zip(*columns, strict=True))


def test_results_are_shown_where_no_superlink_answers(
    folder: SuperLinkFolder, tmp_path: Path
) -> None:
    make_run(tmp_path / "runs" / "one", accuracies=((0.5, 0.7),), status="finished")
    words = ["status", str(folder.path), "--runs", str(tmp_path / "runs")]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    text = " ".join(answer.output.split())
    assert "the SuperLink does not answer" in text
    assert "configuration file" not in text, "Flower was not told where it is"
    assert "finished" in text and "1 of 3" in text


def test_a_folder_without_runs(tmp_path: Path) -> None:
    assert status.read_runs(tmp_path / "nowhere") == []
