"""Predictions of a run for data of one's own, in any order of columns."""

import csv
import json
import shlex
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedsuite
from fedsuite.cli import app
from fedsuite.core.column_scaling import ColumnScaling
from fedsuite.core.errors import DataError, RunError
from fedsuite.core.tasks import TASKS
from fedsuite.data.catalog import DATASETS
from fedsuite.data.columns import fingerprint
from fedsuite.data.schema import TableSchema
from fedsuite.engines.trained import predict as predict_module
from fedsuite.engines.trained.inputs import model_inputs
from fedsuite.engines.trained.outputs import READINGS
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.tables import csv_table
from fedsuite.training.survival import discrete_survival
from tests.docs.pages import DOCS, blocks
from tests.small_runs import SMALL
from tests.tiny_tasks import times

NAMES = ("weight", "age", "height", "pulse")
"""In the order of the file, which is not that of the alphabet."""

SLOPES = (2.0, -1.0, 0.0, 0.5)


def table(rows: int, seed: int) -> dict[str, np.ndarray]:
    values = np.random.default_rng(seed).normal(size=(rows, len(NAMES))).astype(np.float32)
    label = (values @ np.array(SLOPES) > 0).astype(np.int64)
    return {**dict(zip(NAMES, values.T, strict=True)), "label": label}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A run of two hospitals, whose tables have the columns in the order of NAMES."""
    folder = tmp_path_factory.mktemp("hospitals")
    for seed, name in enumerate(("hospital-a", "hospital-b")):
        (folder / name).mkdir()
        pq.write_table(pa.table(table(200, seed)), folder / name / "rows.parquet")
    return fedsuite.run(
        {
            **{"dataset": "own-table", "table_columns": 4, "model": "linear"},
            **{"sites": "hospital-a, hospital-b", "site-dirs": str(folder)},
            **{"num_rounds": 5, "learning-rate": 0.5, "report": False},
            **{"output-dir": str(folder), "run-name": "run"},
        }
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    return fedsuite.run({**SMALL, "output-dir": str(folder), "run-name": "run"})


def right(predicted, rows):
    predicted = np.array(predicted["prediction"], dtype=int)
    return float((predicted == np.array(rows["label"])).mean())


def test_columns_are_known_by_their_names(hospitals):
    rows = table(500, 9)
    assert hospitals.facts.columns == tuple(sorted(NAMES))
    as_in_the_file = np.stack([rows[name] for name in NAMES], axis=1)
    with torch.no_grad():
        silently = hospitals.model()(torch.from_numpy(as_in_the_file)).argmax(1).numpy()
    for order in (NAMES, sorted(NAMES), NAMES[::-1]):
        predicted = hospitals.predict({name: rows[name] for name in order})
        assert right(predicted, rows) > 0.95
    assert (silently == rows["label"]).mean() < 0.8


def test_each_form_of_a_table_gives_the_same(hospitals, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = table(20, 9)
    frame = pandas.DataFrame(rows)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame[::-1].T[::-1].T.to_parquet(tmp_path / "rows.parquet", index=False)
    (tmp_path / "folder").mkdir()
    frame.to_parquet(tmp_path / "folder" / "b.parquet")
    wanted = hospitals.predict(frame.drop(columns="label"), "hospital-b")
    assert list(wanted) == ["prediction", "probability 0", "probability 1"]
    in_order = np.stack([rows[name] for name in sorted(NAMES)], axis=1)
    for data in (
        *(rows, pa.table(rows), in_order, torch.from_numpy(in_order)),
        *(tmp_path / "rows.csv", str(tmp_path / "folder")),
    ):
        found = hospitals.predict(data, 1)
        np.testing.assert_allclose(found["probability 1"], wanted["probability 1"], 1e-6)
    reversed_rows = hospitals.predict(tmp_path / "rows.parquet")
    assert list(reversed_rows["prediction"]) == list(wanted["prediction"])[::-1]


def changed(**columns):
    return {**table(3, 0), **columns}


WRONG = {
    "no column 'age'; it has weight": {k: v for k, v in table(3, 0).items() if k != "age"},
    "'age' holds string, not numbers": changed(age=["1", "2", "old"]),
    "'age' has 1 missing values, the first in row 1": changed(age=[1.0, None, 2.0]),
    r"shape \[3, 5\], and the model takes \[rows, 4\]": np.zeros((3, 5)),
    "not of numbers": np.array([["a"] * 4]),
    "has no rows": np.zeros((0, 4)),
    "no finite numbers": np.full((1, 4), np.inf),
    "no such file or folder": "nowhere.csv",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_does_not_fit_is_said_in_one_line(words, hospitals):
    with pytest.raises(DataError, match=words) as caught:
        hospitals.predict(WRONG[words])
    assert "\n" not in str(caught.value)


def test_columns_that_are_left_out_are_named(hospitals, capsys):
    hospitals.predict(table(3, 0))
    assert "left out, for it was not trained on: 'label'" in capsys.readouterr().out


def facts(**changes):
    known = {"dataset": "own-table", "input_shape": (4,), "words": False}
    return ModelFacts(**{**known, "classes": ("0", "1"), **changes})


def test_sites_that_told_a_hash_alone():
    rows, order = table(3, 0), sorted(NAMES)
    known = facts(columns_hash=fingerprint(order))
    inputs, _ = model_inputs(rows, known)
    expected = np.stack([rows[name] for name in order], axis=1)
    np.testing.assert_array_equal(inputs.numpy(), expected)
    with pytest.raises(DataError, match="not those of the training"):
        model_inputs(
            {**rows, "age": rows["age"], "more": rows["age"], "x": [1, 2, 3]},
            facts(columns_hash=fingerprint(["other", *order[1:]])),
        )
    with pytest.raises(DataError, match="knows no names of its columns"):
        model_inputs(rows, facts())


def test_lists_count_as_their_numbers():
    known = facts(columns=("a", "b[3]"))
    inputs, _ = model_inputs({"b": [[1.0, 2.0, 3.0]], "a": [0]}, known)
    assert inputs.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    with pytest.raises(DataError, match="lists of another length than 3"):
        model_inputs({"b": [[1.0], [2.0, 3.0, 4.0]], "a": [0, 0]}, known)


def test_a_file_is_read_as_those_of_the_training(tmp_path):
    """Semicolons, decimal commas, codes such as 01, blanks, a scaling."""
    schema = TableSchema.parse(
        'columns = ["dose", "ward"]\nmissing = "mean"\n[categories]\nward = ["01", "02"]'
    )
    scaling = ColumnScaling("federated", (2.0,), (0.5,))
    known = facts(
        input_shape=(3,), columns=schema.inputs, schema=schema, column_scaling=scaling
    )
    for name, text in (
        ("a.csv", "ward;dose\n01;2,5\n02;NA\n"),
        ("a.tsv", "ward\tdose\n01\t2.5\n02\t\n"),
        ("b.csv", "dose,ward,label\n2.5,01,0\n,02,1\n"),
    ):
        (tmp_path / name).write_text(text)
        inputs, _ = model_inputs(tmp_path / name, known)
        assert inputs.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    (tmp_path / "bad.csv").write_text("dose;ward\nx;03\n")
    with pytest.raises(DataError, match=r"bad\.csv: 2 faults: \(1\).*'dose'.*\(2\).*'03'"):
        model_inputs(tmp_path / "bad.csv", known)


def test_pixels_are_scaled_as_in_training(digits, tmp_path):
    raw = (
        DATASETS["digits"]
        .source()
        .load(DATASETS["digits"], None)
        .features[:6]
        .astype(np.float32)
    )
    with torch.no_grad():
        wanted = digits.model()(torch.from_numpy(raw / 16)).argmax(1).tolist()
    assert list(digits.predict(raw)["prediction"]) == list(map(str, wanted))
    for number, image in enumerate(raw):
        pixels = np.round(image[0] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    found = digits.predict(tmp_path)
    assert list(found["row"]) == [f"{number}.png" for number in range(6)]
    assert list(found["prediction"]) == list(map(str, wanted))
    with pytest.raises(DataError, match="look scaled"):
        digits.predict(raw / 16)
    with pytest.raises(DataError, match="pixels lie in 0 to 255"):
        digits.predict(np.round(raw * 255 / 16))
    with pytest.raises(DataError, match="image of 5x5"):
        Image.new("L", (5, 5)).save(tmp_path / "9.png")
        digits.predict(tmp_path)


def test_without_pandas_it_is_a_dictionary_of_arrays(hospitals, monkeypatch):
    monkeypatch.setattr(predict_module, "find_spec", lambda name: None)
    found = hospitals.predict(table(3, 0))
    assert type(found) is dict
    np.testing.assert_allclose(found["probability 0"] + found["probability 1"], 1.0)


def test_the_command_writes_what_is_asked(hospitals, tmp_path):
    pq.write_table(pa.table(table(3, 0)), tmp_path / "rows.parquet")
    told = {}
    for output in ("out.csv", "out.parquet"):
        command = ["predict", str(hospitals.path), str(tmp_path / "rows.parquet")]
        command += ["--client", "hospital-a", "--output", str(tmp_path / output)]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0
    with open(tmp_path / "out.csv") as file:
        told["csv"] = [row["prediction"] for row in csv.DictReader(file)]
    told["parquet"] = pq.read_table(tmp_path / "out.parquet")["prediction"].to_pylist()
    assert told["csv"] == told["parquet"]
    assert told["csv"] == list(hospitals.predict(table(3, 0))["prediction"])


def test_the_folder_says_what_the_model_takes(hospitals, digits, tmp_path):
    written = json.loads((hospitals.path / "model.json").read_text())
    assert written["columns"] == sorted(NAMES)
    assert written["classes"] == ["0", "1"]
    assert (digits.facts.max_value, digits.facts.input_shape) == (16, (1, 8, 8))
    hospitals.export(tmp_path / "model.safetensors", "safetensors")
    card = (tmp_path / "model-card.md").read_text()
    for words in ("age, height, pulse, weight", "hospital-a", "fedavg", "test-fraction"):
        assert words in card


def test_damaged_facts_are_one_line(hospitals, tmp_path):
    good = hospitals.facts.as_json()
    for name, value in (
        *(("input_shape", []), ("input_shape", [0]), ("classes", []), ("std", [0.0])),
        *(("columns", ["a", "a"]), ("words", 1), ("format", 7), ("mean", ["x"])),
    ):
        (tmp_path / "model.json").write_text(json.dumps({**good, name: value}))
        with pytest.raises(RunError, match=r"model\.json"):
            ModelFacts.read(tmp_path)
    (tmp_path / "model.json").unlink()
    with pytest.raises(RunError, match="older fedsuite"):
        ModelFacts.read(tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_predictions(task):
    columns = READINGS[task](torch.tensor([[0.0, 2.0]] * 3), ("a", "b"))
    assert all(len(values) in (3, 6) for values in columns.values())
    if "probability b" in columns:
        assert columns["probability b"][0] == pytest.approx(1 / (1 + np.exp(-2.0)))


@pytest.mark.parametrize(
    ("ends", "names"),
    [
        ("", ["log hazard ratio"]),
        ("0.5", ["survival to 0.5"]),
        ("0.5, 2", ["survival to 0.5", "survival to 2"]),
        ("1000001, 1000002", ["survival to 1000001", "survival to 1000002"]),
    ],
)
def test_predictions_of_survival_are_named(ends, names, tmp_path):
    values = {"task": "survival", "dataset": "tests.tiny_tasks:times", "num-clients": 2}
    values |= {"loss": "discrete-time" if ends else "cox", "interval-ends": ends}
    values |= {"model": "mlp", "num-rounds": 1, "report": False, "run-name": "run"}
    run = fedsuite.run({**values, "output-dir": str(tmp_path)})
    predictions = fedsuite.load_run(run.path).predict(times(None, 0.5).test.features)
    assert list(predictions) == names
    if ends:
        survival = np.array([predictions[name] for name in names])
        assert (survival > 0).all() and (np.diff(survival, axis=0) < 0).all()


def test_predicted_survival_by_hand_and_as_it_is_scored():
    # Odds of an event of 1 in the first interval and 3 in the second: 1/2, then 1/4 of it.
    log_odds = torch.tensor([[0.0, np.log(3.0)]])
    predicted = READINGS["survival"](log_odds, ("a", "b"))
    values = [float(column[0]) for column in predicted.values()]
    assert values == pytest.approx([0.5, 0.125])
    scored = discrete_survival(log_odds.double().numpy(), np.array([1.0, 2.0])).values
    assert values == pytest.approx(list(scored[0]))


def test_predictions_of_labels_have_the_names_of_their_columns(tmp_path):
    rows = [(x, x > 3, x % 2) for x in range(8)]
    table = [("dose", "died", "moved"), *((x, int(a), b) for x, a, b in rows)]
    (tmp_path / "rows.csv").write_text(csv_table(table))
    values = {"task": "multi-label", "dataset": "own-table", "data-dir": str(tmp_path)}
    values |= {"columns": "dose", "target": "died, moved", "num-clients": 2}
    values |= {"model": "mlp", "num-rounds": 1, "report": False, "run-name": "run"}
    run = fedsuite.run({**values, "output-dir": str(tmp_path / "runs")})
    predictions = fedsuite.load_run(run.path).predict({"dose": [1.0, 2.0]})
    wanted = ["prediction died", "prediction moved"]
    assert list(predictions) == [*wanted, "probability died", "probability moved"]


def test_the_page_works(hospitals, tmp_path, monkeypatch):
    """The first program and command of how-to/use_the_model.md."""
    page = (DOCS / "how-to" / "use_the_model.md").read_text()
    (program,) = [text for kind, text in blocks(page) if kind == "python"]
    shutil.copytree(hospitals.path, tmp_path / "runs" / "hospitals")
    (tmp_path / "patients.csv").write_text(csv_table([NAMES, (1, 2, 3, 4), (4, 3, 2, 1)]))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program, names)
    assert len(names["predictions"]) == len(names["of_one_hospital"]) == 2
    (line,) = [text for kind, text in blocks(page) if kind == "bash"]
    command = shlex.split(line)[1:]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert (tmp_path / "predictions.csv").read_text().startswith("prediction,")


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedavg-ft"])
def test_at_the_server_of_a_deployment_there_are_no_rows(method, hospitals, tmp_path):
    """The folder of a rehearsal, without the sites' folders, is that of a deployment."""
    values = {**hospitals.experiment, "method": method, "model": "mlp", "num-rounds": 1}
    values |= {"output-dir": str(tmp_path), "run-name": "run"}
    run = fedsuite.run(values)
    text = (run.path / "experiment.toml").read_text()
    there = f'site-dirs = "{hospitals.experiment["site-dirs"]}"'
    assert there in text
    (run.path / "experiment.toml").write_text(text.replace(there, 'site-dirs = ""'))
    inputs = torch.rand(3, 4)
    served = fedsuite.load_run(run.path)
    if method == "fedavg-ft":
        with pytest.raises(RunError, match="which lie at its site: load the model there"):
            served.client_model("hospital-b")
        return
    found = served.client_model("hospital-b")(inputs)
    assert torch.equal(found, run.client_model("hospital-b")(inputs))
    shutil.rmtree(run.path / "state", ignore_errors=True)
    if method == "fedper":
        with pytest.raises(RunError, match="a part of its model stays with it"):
            served.client_model("hospital-b")
