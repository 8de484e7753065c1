"""Reading run folders: whole, going on, torn, and damaged."""

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fedsuite.core.errors import RunError
from fedsuite.core.files import safetensors_bytes
from fedsuite.core.reading import LONGEST_LINE, read_arrays
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
    folder.append("events", [{"round": number} for number in range(count)])
    found = [row["round"] for row in load_run(folder.path).events()]
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


WRONG = [
    ("rounds.jsonl", b'{"round": true}', "round is true or false"),
    ("rounds.jsonl", b'{"round": 1e400}', "round is no number that counts"),
    ("rounds.jsonl", b'{"round": -1}', "round is no round"),
    ("rounds.jsonl", b'{"loss": 1}', "round is missing"),
    ("rounds.jsonl", b'{"round": 1, "loss": "low"}', "'loss' is text"),
    ("rounds.jsonl", b'{"a": ' + b"[" * 9**6 + b"]" * 9**6 + b"}", "expected a JSON"),
    ("rounds.jsonl", b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "expected a JSON"),
    ("rounds.jsonl", b"x" * (LONGEST_LINE + 1), "a line has over"),
    ("clients.jsonl", b'{"round": 1, "phase": "train", "client": []}', "client is a list"),
    ("clients.jsonl", b'{"round": 1, "client": 1}', "phase is missing"),
    ("events.jsonl", b'{"round": 1, "client": {}}', "client is an object"),
    ("manifest.json", b'{"format": 1}', "status is missing"),
    ("manifest.json", b'{"format": 1, "status": "odd"}', "status is none of running"),
    (
        "manifest.json",
        b'{"format": 1, "status": "failed", "networks": ["a"]}',
        "networks do",
    ),
    ("experiment.toml", b'num-rounds = "3"', "num-rounds is text"),
    ("experiment.toml", b"a = {b = 1}", "'a' is an object"),
    ("experiment.toml", b"a = " + b"[" * 9**5, "nested too deeply"),
]


@pytest.mark.parametrize(("name", "line", "message"), WRONG)
def test_another_type_is_refused_in_one_line(folder, name, line, message):
    (folder.path / name).write_bytes(line + b"\n")
    with pytest.raises(RunError, match=message) as caught:
        run = load_run(folder.path)
        run.clients(), run.events()
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_that_do_not_count_are_none(folder):
    numbers = b'"a": NaN, "b": -Infinity, "c": 1e400, "d": 1e101, "e": 1%s, "f": 0.5'
    line = b'{"round": 3, ' + numbers % (b"0" * 200) + b"}\n"
    (folder.path / "rounds.jsonl").write_bytes(line)
    [row] = load_run(folder.path).rounds
    assert row == {"round": 3, **dict.fromkeys("abcde"), "f": 0.5}


MADE = {
    "is a link": lambda path: path.symlink_to("/dev/zero"),
    "a pipe or a device": os.mkfifo,
    "Is a directory": Path.mkdir,
    "a line has over|more than": lambda path: sparse(path),
}


def sparse(path):
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("message", MADE)
@pytest.mark.parametrize(
    "name", ["manifest.json", "experiment.toml", "summary.json", "rounds.jsonl"]
)
def test_what_is_no_file_of_a_run_is_not_waited_for(folder, name, message):
    (folder.path / name).unlink(missing_ok=True)
    MADE[message](folder.path / name)
    with pytest.raises(RunError, match=f"cannot read .*{name}: .*({message})"):
        load_run(folder.path)


def test_arrays_of_another_size_are_not_read(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": np.arange(3.0)}, "note"))
    assert read_arrays(path)[1] == "note"
    with path.open("rb+") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="torn"):
        read_arrays(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="pipe"):
        read_arrays(path)


def test_a_note_on_a_million_clients_comes_back(tmp_path):
    """It stands in the header of a checkpoint."""
    note = "7.1," * 2**23
    path = tmp_path / "arrays.safetensors"
    path.write_bytes(safetensors_bytes({"a": np.ones(1)}, note))
    assert read_arrays(path)[1] == note


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(RunError, match="none is not a folder"):
        load_run(tmp_path / "none")
