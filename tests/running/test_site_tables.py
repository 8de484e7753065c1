"""Runs on tables of one's own: scaled alike in a rehearsal and at nodes, and divided."""

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict

import fedsuite
from fedsuite.core.errors import ConfigError, DataError, FedsuiteError, RunError
from fedsuite.core.keys import Value
from fedsuite.data.schema import TableSchema
from fedsuite.engines.api import at_home
from fedsuite.engines.trained.inputs import model_inputs
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.model_facts import ModelFacts
from fedsuite.running import node_app
from fedsuite.running.server import run_experiment
from fedsuite.running.site_tables import STATISTICS_FILE, ask_for_statistics
from fedsuite.training.app import reply_of_error
from fedsuite.workarounds.identity import flower_identity
from tests.rounds.registered import Registered
from tests.small_runs import final_model

NAMES = ("north", "east", "south")
SCHEMA = TableSchema(
    ("income", "age", "sex"),
    "ill",
    ("no", "yes"),
    categories={"sex": ("f", "m")},
    missing="indicator",
)
KEYS: dict[str, Value] = {
    "dataset": "own-table",
    "schema": SCHEMA.to_json(),
    "model": "linear",
    "num-rounds": 2,
    "learning-rate": 0.3,
    "local-epochs": 5,
    "scaling": "federated",
    "report": False,
}
SITES: dict[str, Value] = {"sites": ", ".join(NAMES)}


def patients(seed: int, rows: int = 60) -> pd.DataFrame:
    """Return rows whose class is the sign of an income that was never scaled."""
    rng = np.random.default_rng(seed)
    income = rng.normal(40_000 + 5_000 * seed, 9_000, rows).round()
    frame = pd.DataFrame({"income": income, "age": rng.integers(20, 90, rows) * 1.0})
    frame["sex"] = rng.choice(["f", "m"], rows)
    frame["ill"] = np.where(income > 45_000, "yes", "no")
    frame.loc[::9, "age"] = np.nan
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three sites: two CSV files and a Parquet file."""
    root = tmp_path_factory.mktemp("tables")
    for seed, name in enumerate(NAMES):
        (root / name).mkdir()
        if seed:
            patients(seed).to_csv(root / name / "rows.csv", index=False)
        else:
            patients(seed).to_parquet(root / name / "rows.parquet")
    (root / "schema.json").write_text(SCHEMA.to_json())
    return root


class Nodes(Registered):
    """Real nodes' ClientApps in this process, each with its own configuration."""

    def __init__(self, experiment: Experiment, folder: Path, least_rows: int = 10) -> None:
        named = {1000 + k: (name, name.encode()) for k, name in enumerate(NAMES)}
        super().__init__(node_app.app, named)
        self.values = dict(experiment.values)
        self.configs: dict[int, dict[str, Value]] = {
            node: {
                "data": str(folder / name),
                "site": name,
                "schema": str(folder / "schema.json"),
                "least-rows": least_rows,
            }
            for node, (name, _) in named.items()
        }
        self.told: list[Message] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        replies = super().send_and_receive(messages, timeout=timeout)
        for reply in replies:
            self.told.append(reply)
            yield reply

    def _answer_here(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(7, node, self.configs[node], RecordDict(), self.values)
        # Each message is answered by a process that remembers nothing.
        node_app._worker.cache_clear()
        try:
            return node_app.app(message, context)
        except Exception as error:
            return reply_of_error(message, error)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSUITE_STATE", str(tmp_path / "state"))


def an_experiment(tmp_path: Path, name: str, **changes: Value) -> Experiment:
    renamed = {key.replace("_", "-"): value for key, value in changes.items()}
    where = {"output-dir": str(tmp_path), "run-name": name}
    return Experiment.from_values(KEYS | SITES | where | renamed)


def deployed(experiment: Experiment, grid: Nodes, tmp_path: Path) -> Path:
    with flower_identity():
        folder = tmp_path / str(experiment["run-name"])
        return run_experiment(experiment, grid, folder, flwr_run_id=7).path


@pytest.mark.parametrize("scaling", ["federated", "standard"])
def test_nodes_scale_to_the_bits_of_a_rehearsal(
    scaling: str, folder: Path, tmp_path: Path
) -> None:
    """Under ``standard`` missing values become the mean, and nothing is scaled."""
    given = an_experiment(tmp_path, "real", scaling=scaling)
    nodes = Nodes(given, folder)
    real = deployed(given, nodes, tmp_path)
    names = {**given.values, "run-name": "rehearsal", "site-dirs": str(folder)}
    rehearsal = fedsuite.run(names)
    assert final_model(real) == final_model(rehearsal.path)
    if scaling == "federated":
        assert rehearsal.rounds[-1]["accuracy_mean"] > 0.7
    kept = json.loads((tmp_path / "state" / "real" / "column-scaling.json").read_text())
    pool = pd.concat(
        pd.DataFrame(
            federated_data(Experiment.from_values(names)).site_rows(k).train.features
        )
        for k in range(3)
    )
    np.testing.assert_allclose(kept["means"], pool[[0, 1]].mean(), rtol=1e-6)
    np.testing.assert_allclose(kept["deviations"], pool[[0, 1]].std(ddof=0), rtol=1e-5)


def test_the_facts_of_a_run_have_what_was_done(folder: Path, tmp_path: Path) -> None:
    data = federated_data(an_experiment(tmp_path, "run", site_dirs=str(folder)))
    known = ModelFacts.of(data)
    rows = patients(1)
    features, _ = model_inputs(rows, known)
    trained = data.client(1)
    every = np.concatenate([trained.train.features, trained.test.features])
    np.testing.assert_array_equal(np.sort(every, axis=0), np.sort(features, axis=0))
    (tmp_path / "model.json").write_text(known.text())
    again, _ = model_inputs(rows, ModelFacts.read(tmp_path))
    np.testing.assert_array_equal(again, features)


def test_a_site_of_few_rows_tells_no_sums(folder: Path, tmp_path: Path) -> None:
    given = an_experiment(tmp_path, "few")
    grid = Nodes(given, folder, least_rows=49)
    with pytest.raises(RunError, match="site north failed the hello"):
        deployed(given, grid, tmp_path)
    told = str([reply.error.reason for reply in grid.told if reply.has_error()])
    assert "its own log says why" in told
    assert "48" not in told


def test_another_schema_is_refused_at_the_site_and_told_there(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = TableSchema.from_dict(SCHEMA.to_dict() | {"columns": ["age", "income", "sex"]})
    given = an_experiment(tmp_path, "other", schema=other.to_json())
    with caplog.at_level(logging.ERROR), pytest.raises(RunError) as caught:
        deployed(given, Nodes(given, folder), tmp_path)
    assert "site north failed the hello" in str(caught.value)
    assert "income" not in str(caught.value)
    assert "this one has them in the order 'age', 'income', 'sex'" in caplog.text


def test_sums_over_more_rows_than_a_site_has_end_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsuite.running import worker

    told = worker.told_sums

    def lie(sums: Any) -> dict[str, list[float]]:
        return {**told(sums), "column-sums-counts": [10**9, 10**9]}

    monkeypatch.setattr(worker, "told_sums", lie)
    given = an_experiment(tmp_path, "lies")
    with pytest.raises(RunError, match="tells sums over more values than it has rows"):
        deployed(given, Nodes(given, folder), tmp_path)


def test_sites_tell_statistics_in_place_of_training(folder: Path, tmp_path: Path) -> None:
    given = an_experiment(tmp_path, "ask", only_statistics=True)
    grid = Nodes(given, folder)
    with flower_identity():
        ask_for_statistics(given, grid, tmp_path / "ask")
    told = json.loads((tmp_path / f"ask{STATISTICS_FILE}").read_text())
    assert not (tmp_path / "ask").exists(), "the run of this name is yet to come"
    assert set(told) == set(NAMES)
    assert told["east"]["rows"] == 48
    assert set(told["east"]["classes"]) == {"no", "yes"}
    assert "range" in told["east"]["columns"]["income"]
    assert all(reply.content.array_records == {} for reply in grid.told)
    with pytest.raises(ConfigError, match="use `fedsuite deploy statistics`"):
        fedsuite.run({**given.values, "site-dirs": str(folder), "run-name": "no"})


# Tables in one place


def one_table(tmp_path: Path) -> Path:
    frames = [patients(seed).assign(hospital=name) for seed, name in enumerate(NAMES)]
    (tmp_path / "one").mkdir()
    frame = pd.concat(frames).sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "one" / "rows.csv", index=False)
    return tmp_path / "one"


def test_a_column_divides_a_table_into_clients(tmp_path: Path) -> None:
    keys = KEYS | {"data-dir": str(one_table(tmp_path)), "client-column": "hospital"}
    resolved = at_home(Experiment.from_values(keys))
    assert resolved.num_clients == 3
    data = federated_data(resolved)
    raw = [
        data._raw.features[data._rows.train[rows]][:, 0] for rows in data.partition.train
    ]
    by_name = {n: patients(seed)["income"] for seed, n in enumerate(NAMES)}
    for values, name in zip(raw, sorted(by_name), strict=True):
        assert set(values.tolist()) <= set(by_name[name]), "clients in the order of names"
    assert data.column_scaling is not None
    mean = np.concatenate(raw).astype(float).mean()
    np.testing.assert_allclose(data.column_scaling.means[0], mean)
    done = fedsuite.run({**keys, "output-dir": str(tmp_path), "run-name": "run"})
    assert done.rounds[-1]["accuracy_mean"] > 0.7


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"client-column": "ward"}, "no column 'ward', which client-column names"),
        ({"client-column": "hospital", "num-clients": 4}, "has 3 names: leave the key out"),
        ({"client-column": "hospital", "partitioner": "shards"}, "the column divides the"),
        ({"client-column": "hospital", "sites": "a, b"}, "each site is one client"),
        ({"data-dir": "auto"}, "name the folder of the files with data-dir"),
    ],
)
def test_a_division_that_cannot_be(
    tmp_path: Path, keys: dict[str, Value], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSUITE_DATA", raising=False)
    where: dict[str, Value] = {"data-dir": str(one_table(tmp_path)), "run-name": "run"}
    with pytest.raises(FedsuiteError) as caught:
        fedsuite.run({**KEYS, **where, "output-dir": str(tmp_path), **keys})
    assert message in str(caught.value)


def test_unscaled_columns_are_named(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = an_experiment(tmp_path, "warn", site_dirs=str(folder), scaling="standard")
    with caplog.at_level(logging.WARNING):
        federated_data(given).client(0)
    assert "site north: values beyond 1000 in income: training may get" in caplog.text


# Words


def test_rows_of_words_train_an_embedding(tmp_path: Path) -> None:
    """The class is whether a word of the upper half stands in the row."""
    schema = TableSchema(("words[6]",), "urgent", tokens=20)
    for seed, name in enumerate(NAMES[:2]):
        rng = np.random.default_rng(seed)
        words = rng.integers(1, 10, (80, 6))
        urgent = np.arange(80) % 2
        words[urgent == 1, 0] = rng.integers(10, 20, 40)
        words[:, 5] = 0
        frame = pd.DataFrame({"words": words.tolist(), "urgent": urgent})
        (tmp_path / name).mkdir()
        frame.to_parquet(tmp_path / name / "rows.parquet")
    keys: dict[str, Value] = {
        "dataset": "own-table",
        "schema": schema.to_json(),
        "model": "embedding-bag",
        "vocabulary-size": 20,
        "learning-rate": 1.0,
        "local-epochs": 5,
        "num-rounds": 10,
        "report": False,
        "sites": "north, east",
        "site-dirs": str(tmp_path),
    }
    data = federated_data(Experiment.from_values(keys))
    assert data.holds_words
    assert str(data.client(0).train.features.dtype) == "torch.int64"
    done = fedsuite.run({**keys, "output-dir": str(tmp_path), "run-name": "words"})
    assert done.rounds[-1]["accuracy_mean"] > 0.95
    small = {**keys, "vocabulary-size": 10, "output-dir": str(tmp_path), "run-name": "few"}
    with pytest.raises(FedsuiteError, match="raise vocabulary-size"):
        fedsuite.run(small)
    linear = {k: v for k, v in keys.items() if k != "vocabulary-size"}
    with pytest.raises((FedsuiteError, DataError)):
        fedsuite.run({**linear, "model": "linear", "run-name": "linear"})
