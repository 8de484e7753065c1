"""Reading run folders: whole, going on, torn, and damaged."""

from dataclasses import asdict

import numpy as np
import pytest

from fedsuite.core.errors import RunError
from fedsuite.data import ClientShift
from fedsuite.results import layout
from fedsuite.results.reader import load_run
from tests.results.made_runs import make_run


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run", accuracies=((0.1, 0.3), (0.5, 0.9)))


def test_a_run_is_read_back(folder):
    folder.write_json("summary.json", {"mean": 70})
    run = load_run(str(folder.path))
    assert run.path == folder.path
    assert run.experiment["learning-rate"] == 0.1
    assert run.manifest["status"] == "finished"
    assert [row["round"] for row in run.rounds] == [1, 2]
    assert len(run.clients()) == 4
    assert run.events() == []
    assert run.summary == {"mean": 70}


def test_a_run_that_has_just_started_is_empty(tmp_path):
    run = load_run(make_run(tmp_path / "run", accuracies=(), status="running").path)
    assert run.rounds == ()
    assert run.summary is None
    assert run.class_counts("train") is None
    assert run.client_values("evaluate", "accuracy") == {}
    rounds, values = run.column("accuracy_mean")
    assert rounds.size == values.size == 0


def test_column_leaves_out_rounds_without_the_number(folder):
    folder.append("rounds", [{"round": 3, "train_loss": float("nan")}, {"round": 4}])
    folder.append("rounds", [{"round": 5, "train_loss": 0.25}])
    rounds, values = load_run(folder.path).column("train_loss")
    assert rounds.tolist() == [1, 2, 5]
    assert values.tolist() == [2, 1, 0.25]
    assert (rounds.dtype, values.dtype) == (np.int64, np.float64)


def test_client_values_of_the_last_or_a_given_round(folder):
    folder.append(
        "clients",
        [
            {"round": 2, "phase": "train", "client": 0, "loss": 7, "accuracy": 0.0},
            {"round": 3, "phase": "evaluate", "client": 0, "accuracy": float("nan")},
        ],
    )
    run = load_run(folder.path)
    assert run.client_values("evaluate", "accuracy") == {0: 0.5, 1: 0.9}
    assert run.client_values("evaluate", "accuracy", 1) == {0: 0.1, 1: 0.3}
    assert run.client_values("evaluate", "accuracy", 9) == {}
    assert run.client_values("train", "loss") == {0: 7}
    assert run.client_history("evaluate", "accuracy").keys() == {1, 2}


def test_clients_can_have_names(folder):
    folder.append(
        "clients", [{"round": 3, "phase": "evaluate", "client": "ward-a", "accuracy": 1}]
    )
    assert load_run(folder.path).client_values("evaluate", "accuracy") == {"ward-a": 1.0}


@pytest.mark.parametrize("torn", [b'{"round": 3, "trai', b'{"round": 3}', b'{"a": "\xc3'])
def test_a_torn_last_line_is_passed_over(folder, torn):
    with (folder.path / "rounds.jsonl").open("ab") as file:
        file.write(torn)
    assert [row["round"] for row in load_run(folder.path).rounds] == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(folder):
    path = folder.path / "rounds.jsonl"
    path.write_text(path.read_text().replace("}\n", "\n", 1))
    with pytest.raises(RunError, match=r"rounds\.jsonl, line 1: expected a JSON object"):
        load_run(folder.path)


@pytest.mark.parametrize("line", [b'{"round": 3},{"round": 4}', b"3", b"[]", b"", b"{},"])
def test_each_line_is_one_object(folder, line):
    path = folder.path / "rounds.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(RunError, match=r"rounds\.jsonl, line 3: expected a JSON object"):
        load_run(folder.path)


def test_many_lines_are_read_in_order(folder):
    count = 2 * layout._PARSED_TOGETHER + 5
    folder.append("events", [{"number": number} for number in range(count)])
    found = [row["number"] for row in load_run(folder.path).events()]
    assert found == list(range(count))
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(b"}\n")
    with pytest.raises(RunError, match=rf"events\.jsonl, line {count + 1}: expected"):
        load_run(folder.path).events()


def test_class_counts(folder):
    folder.write_json("partition.json", {"train": [[1, 2, 3], [4, 5, 6]], "test": None})
    run = load_run(folder.path)
    assert run.class_counts("train").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert run.class_counts("test") is None
    assert run.shifts() == ()


def test_shifts(folder):
    assert load_run(folder.path).shifts() == ()
    shifts = (ClientShift(2.5, None, 1.0, 80.0, 70, 0.25, 3.0),) * 2
    folder.write_json("partition.json", {"shift": [asdict(shift) for shift in shifts]})
    assert load_run(folder.path).shifts() == shifts
    folder.write_json("partition.json", {"shift": [{"distance": 2}]})
    with pytest.raises(RunError, match=r"partition\.json: its shifts cannot be read"):
        load_run(folder.path).shifts()


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("manifest.json", None, r"holds no manifest\.json"),
        ("manifest.json", b"{", r"manifest\.json: expected a JSON object"),
        ("manifest.json", b"[1]", r"manifest\.json: expected a JSON object"),
        ("manifest.json", b"\xff", r"manifest\.json: expected a JSON object"),
        ("manifest.json", b'{"format": 2}', "format 2: this fedsuite reads format 1"),
        ("manifest.json", b"{}", "format None"),
        ("experiment.toml", None, r"cannot read .*experiment\.toml: No such file"),
        ("experiment.toml", b"a = = 1", r"experiment\.toml: not valid TOML"),
        ("experiment.toml", b"\xff", r"experiment\.toml: not valid TOML"),
        ("summary.json", b"null", r"summary\.json: expected a JSON object"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(folder, name, contents, message):
    if contents is None:
        (folder.path / name).unlink()
    else:
        (folder.path / name).write_bytes(contents)
    with pytest.raises(RunError, match=message) as caught:
        load_run(folder.path)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(RunError, match="none is not a folder"):
        load_run(tmp_path / "none")
