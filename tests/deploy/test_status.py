"""How a federation stands, from what Flower tells and from the folders of runs."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy import programs, status
from fedsuite.deploy.commands import app
from fedsuite.deploy.folders import NodeFolder, SuperLinkFolder, init_federation
from fedsuite.results.layout import read_manifest
from fedsuite.results.writer import RunFolder
from tests.results.made_runs import make_run


@pytest.fixture
def folder(tmp_path: Path) -> SuperLinkFolder:
    init_federation(tmp_path / "fed", ["127.0.0.1"], ["a", "b", "c"], days=2)
    return SuperLinkFolder.load(tmp_path / "fed" / "superlink")


def answers(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, str]]) -> list[str]:
    """Let Flower know these nodes; return what is registered and unregistered meanwhile."""
    asked: list[str] = []

    def ask(folder: SuperLinkFolder, *words: str) -> str:
        if words[:2] == ("supernode", "list"):
            return json.dumps({"success": True, "nodes": nodes})
        if words[:2] == ("supernode", "register"):
            asked.append(words[words.index("--name") + 1])
            assert Path(words[2]).read_text().endswith(f" {asked[-1]}\n")
            number = f"{100 + len(asked)}"
            nodes.append({"node-id": number, "status": "registered"})
            return f'done\n{{"success": true, "node-id": {number}}}\n'
        if words[:2] == ("supernode", "unregister"):
            asked.append(f"not {words[2]}")
            (node,) = (node for node in nodes if node["node-id"] == words[2])
            node["status"] = "unregistered"
            return '{"success": true}'
        return json.dumps({"runs": [{"run-id": "7", "status": "running"}]})

    monkeypatch.setattr(programs, "ask", ask)
    monkeypatch.setattr(status, "ask", ask)
    return asked


def test_keys_are_let_in_once(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, str]] = []
    asked = answers(monkeypatch, nodes)
    assert programs.register_nodes(folder).added == ["a", "b", "c"]
    nodes[0]["status"], nodes[1]["status"] = "online", "offline"
    del nodes[2]  # as after the loss of the SuperLink's database
    assert programs.register_nodes(folder).added == ["c"]
    assert asked == ["a", "b", "c", "c"]
    assert str(programs.register_nodes(folder)) == ""
    assert status.list_nodes(folder) == [
        ("a", "online"),
        ("b", "offline"),
        ("c", "registered"),
    ]


def command(folder: SuperLinkFolder, *words: str) -> str:
    result = CliRunner().invoke(app, ["nodes", str(folder.path), *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_node_that_is_taken_out_stays_out(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, str]] = []
    asked = answers(monkeypatch, nodes)
    programs.register_nodes(folder)
    assert "taken out: b" in command(folder, "--remove", "b")
    assert asked[3:] == ["not 102"]
    smaller = SuperLinkFolder.load(folder.path)
    assert smaller.nodes == ("a", "c") and not folder.public_key("b").exists()
    # A new database knows the others alone.
    nodes.clear()
    assert programs.register_nodes(smaller).added == ["a", "c"]


def test_a_node_joins_later_with_a_folder_like_those_of_the_others(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, [])
    programs.register_nodes(folder)
    assert "registered now: d" in command(folder, "--add", "d")
    assert asked[3:] == ["d"]
    a, d = (folder.path.parent / "nodes" / name for name in "ad")
    names = [{path.name for path in node.iterdir()} for node in (a, d)]
    assert names[1] == names[0] | {"policy.toml"}
    assert (d / "ca.crt").read_bytes() == (a / "ca.crt").read_bytes()
    assert NodeFolder.load(d).superlink == NodeFolder.load(a).superlink
    assert NodeFolder.load(d).config["partition-id"] == 3
    larger = SuperLinkFolder.load(folder.path)
    assert larger.nodes == ("a", "b", "c", "d")
    assert larger.public_key("d").read_bytes() == (d / "key.pub").read_bytes()
    assert stat.S_IMODE((d / "key").stat().st_mode) == 0o600


def test_a_new_key_takes_the_place_of_the_old_one(
    folder: SuperLinkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, str]] = []
    asked = answers(monkeypatch, nodes)
    programs.register_nodes(folder)
    old = folder.public_key("b").read_bytes()
    output = command(folder, "--new-keys", "b", "--output", str(tmp_path / "new"))
    assert "registered now: b" in output and "taken out" not in output
    assert asked[3:] == ["not 102", "b"]
    new = tmp_path / "new" / "b"
    assert sorted(path.name for path in new.iterdir()) == ["key", "key.pub"]
    assert folder.public_key("b").read_bytes() == (new / "key.pub").read_bytes() != old
    assert dict(status.list_nodes(folder))["b"] == "registered"


def test_a_node_that_was_registered_otherwise_is_not_said_to_be_out(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, [])
    programs.register_nodes(folder)
    (folder.path / programs.REGISTERED).unlink()
    nodes = [{"node-id": f"{n}", "status": "online"} for n in (101, 102, 103)]
    asked = answers(monkeypatch, nodes)
    output = command(folder, "--remove", "b")
    assert "not 102" not in asked
    assert "b: not registered from this folder" in output and "taken out" not in output


def test_an_error_of_flower_is_not_an_empty_list(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, [])
    programs.register_nodes(folder)
    known = programs.node_numbers(folder)
    error = {"success": False, "error-message": "Using SuperLink\n\nConnection refused\n"}
    monkeypatch.setattr(programs, "ask", lambda *words: json.dumps(error))
    with pytest.raises(RunError, match=r"^Connection refused$"):
        programs.register_nodes(folder)
    assert programs.node_numbers(folder) == known
    output = command(folder, "--remove", "b")
    assert "was not told (Connection refused)" in output


def test_a_place_that_cannot_be_written_is_one_line(
    folder: SuperLinkFolder, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "in")
    for words in (
        ["nodes", str(folder.path), "--add", "d", "--output", place],
        ["init", "--superlink", "localhost", "--nodes", "a", "--output", place],
    ):
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, RunError)
        assert str(result.exception).startswith("cannot write ")
    assert SuperLinkFolder.load(folder.path).nodes == ("a", "b", "c")


def test_what_the_superlink_was_not_told_it_hears_at_its_next_start(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, str]] = []
    asked = answers(monkeypatch, nodes)
    programs.register_nodes(folder)
    ask = programs.ask

    def silent(folder: SuperLinkFolder, *words: str) -> str:
        raise RunError("flwr supernode list failed: Connection refused")

    monkeypatch.setattr(programs, "ask", silent)
    assert "was not told" in command(folder, "--remove", "b")
    assert "was not told" in command(
        folder, "--add", "b", "--output", str(folder.path.parent / "new")
    )
    monkeypatch.setattr(programs, "ask", ask)
    changed = programs.register_nodes(SuperLinkFolder.load(folder.path))
    assert changed.added == ["b"] and asked[3:] == ["not 102", "b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--add", "A"), "each name must be there once"),
        (("--add", "../d"), "expected letters"),
        (("--remove", "e"), "has no node 'e'; its nodes: a, b, c"),
        (("--remove", "a,b,c"), "one node must be left"),
        (("--new-keys", "a"), "name another place by --output"),
        (("--new-keys", "a,a", "--output", "new"), "each name must be there once"),
        (("--remove", "b", "--add", "A"), "give one of them at a time"),
    ],
)
def test_a_change_of_nodes_that_cannot_be_changes_nothing(
    folder: SuperLinkFolder,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    asked = answers(monkeypatch, [])
    before = {p: p.read_bytes() for p in folder.path.parent.rglob("*") if p.is_file()}
    result = CliRunner().invoke(app, ["nodes", str(folder.path), *words])
    assert isinstance(result.exception, ConfigError) and message in str(result.exception)
    after = {p: p.read_bytes() for p in folder.path.parent.rglob("*") if p.is_file()}
    assert before == after and asked == []


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


def test_an_older_database_lets_nobody_in_who_was_taken_out(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, str]] = []
    asked = answers(monkeypatch, nodes)
    programs.register_nodes(folder)
    copy = [dict(node) for node in nodes]
    command(folder, "--remove", "b")
    command(folder, "--new-keys", "c", "--output", str(folder.path.parent / "new"))
    smaller = SuperLinkFolder.load(folder.path)
    nodes[:] = copy
    done = len(asked)
    assert str(programs.register_nodes(smaller)) == "registered now: c; taken out: b"
    assert asked[done:] == ["not 102", "not 103", "c"]
    assert str(programs.register_nodes(smaller)) == ""


def test_a_registration_that_was_cut_off_is_found_again(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, str]] = [{"node-id": "9", "status": "online"}]
    asked = answers(monkeypatch, nodes)
    whole = programs.ask
    keys: set[str] = set()
    cut = True

    def ask(folder: SuperLinkFolder, *words: str) -> str:
        if words[:2] != ("supernode", "register"):
            return whole(folder, *words)
        key = Path(words[2]).read_text()
        if key in keys:
            return '{"error-message": "[code: 23] Public key already in use.."}'
        keys.add(key)
        answer = whole(folder, *words)
        if cut and asked[-1] == "b":
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(programs, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        programs.register_nodes(folder)
    assert asked == ["a", "b"]
    cut = False
    # Another node by hand meanwhile: which of the two numbers is b's nobody knows.
    nodes.append({"node-id": "10", "status": "registered"})
    with pytest.raises(RunError, match=r"^b: \[code: 23\] Public key already in use\. W"):
        programs.register_nodes(folder)
    nodes[-1]["status"] = "unregistered"
    assert programs.register_nodes(folder).added == ["b", "c"]
    assert programs.node_numbers(folder) == {"a": "101", "b": "102", "c": "103"}
    assert not (folder.path / programs.BEGUN).exists()


def test_a_node_that_may_join_and_is_not_of_this_folder_is_shown(
    folder: SuperLinkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        {"node-id": "9", "status": "online"},
        {"node-id": "8", "status": "unregistered"},
    ]
    answers(monkeypatch, nodes)
    programs.register_nodes(folder)
    rows = cells(status.federation_tables(folder, [])[0])
    assert rows[3:] == [("9 (not of this folder)", "online")]
    assert [name for name, _ in status.list_nodes(folder)] == ["a", "b", "c"]
