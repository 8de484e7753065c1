"""Runs whose clients are sites with data of their own: what the server may not need."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import fedsuite
from fedsuite.core.errors import ConfigError, DataError, FedsuiteError
from fedsuite.core.keys import Value
from fedsuite.data.columns import fingerprint
from fedsuite.data.site_federation import rehearsal_sites
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.layout import PARTITION
from fedsuite.running.node import node_site
from fedsuite.running.node_app import client_from_context, fingerprints_from_context
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import server_parts
from fedsuite.running.worker import Worker
from fedsuite.training.store import MemoryStore
from tests.data.site_files import DIVIDED, NAMES, PIXELS, write, write_sites
from tests.small_runs import final_model

SITES: dict[str, Value] = {
    "dataset": "digits",
    "model": "linear",
    "sites": ", ".join(NAMES),
    "num-rounds": 2,
    "report": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("sites") / "rehearsal")


def experiment(**changes: Value) -> Experiment:
    renamed = {name.replace("_", "-"): value for name, value in changes.items()}
    return Experiment.from_values(SITES | renamed)


def run(path: Path, name: str, keys: dict[str, Value]) -> Any:
    return fedsuite.run(keys | {"output-dir": str(path), "run-name": name})


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedeba-plus"])
def test_sites_train_to_the_same_bits_as_divided_data(
    method: str, folder: Path, tmp_path: Path
) -> None:
    given = SITES | {"method": method, "site-dirs": str(folder)}
    alike = {"model": "linear", "num-rounds": 2, "report": False}
    divided = {**DIVIDED, **alike, "method": method}
    sites = run(tmp_path, "sites", given)
    assert final_model(sites.path) == final_model(run(tmp_path, "div", divided).path)
    lines = (sites.path / "clients.jsonl").read_text().splitlines()
    assert {json.loads(line)["client"] for line in lines} == set(NAMES)


def test_a_table_that_no_catalogue_knows(tmp_path: Path) -> None:
    """The second column is the class, which a linear model finds."""
    for name in ("a", "b"):
        label = [0, 1, 2] * 20
        columns = {"age": [1.0] * 60, "sign": [3.0 * k - 3 for k in label]}
        write(tmp_path / name / "rows.parquet", columns | {"label": label})
    table: dict[str, Value] = {"dataset": "own-table", "table-classes": 3}
    keys = SITES | table | {"sites": "a, b", "site-dirs": str(tmp_path)}
    done = run(tmp_path, "run", keys | {"table-columns": 2, "local-epochs": 20})
    assert {shape for shape, _ in final_model(done.path).values()} == {(3, 2), (3,)}
    rounds = (done.path / "rounds.jsonl").read_text().splitlines()
    assert json.loads(rounds[-1])["accuracy_mean"] > 0.6
    with pytest.raises(DataError, match="2 columns hold 2 numbers per row: data set own"):
        run(tmp_path, "wrong", keys | {"table-columns": 3})
    with pytest.raises(ConfigError, match="it has no rows of its own: name the folder"):
        run(tmp_path, "alone", {"dataset": "own-table", "model": "linear"})


def test_a_run_records_no_counts_of_rows(folder: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "run", SITES | {"site-dirs": str(folder)})
    assert not (done.path / PARTITION).exists()
    assert set(done.manifest["data"]) == {
        "dataset",
        "partitioner",
        "sites",
        "num-clients",
        "num-classes",
        "input-shape",
        "fingerprint",
    }


def test_the_server_needs_no_rows() -> None:
    given = experiment()
    data = federated_data(given)
    assert data.num_clients == given.num_clients == 3
    assert (data.num_classes, data.input_shape) == (10, (1, 8, 8))
    with pytest.raises(DataError, match="rows of a site lie at its own node"):
        data.client(0)
    with pytest.raises(DataError, match="which classes they hold stays with them"):
        data.class_counts()


def test_the_strategy_knows_nodes_by_their_registered_names(folder: Path) -> None:
    from fedsuite.experiment.data_and_models import network_model

    def directory(given: Experiment) -> Any:
        data = federated_data(given)
        parts = server_parts(given, data, network_model(given, data))
        return build_strategy(given, parts).directory

    real, rehearsal = directory(experiment()), directory(experiment(site_dirs=str(folder)))
    assert (real._identity, rehearsal._identity) == ("registered", "partition")
    assert list(real._names.values()) == list(rehearsal._names.values()) == list(NAMES)


def test_what_a_server_knows_of_its_clients_sizes(folder: Path) -> None:
    """Of sites what the operators wrote, else nothing; of a partition all."""
    from fedsuite.experiment.data_and_models import network_model

    def known(given: Experiment) -> dict[int, int]:
        data = federated_data(given)
        parts = server_parts(given, data, network_model(given, data))
        return dict(build_strategy(given, parts).training_rows)

    assert known(experiment()) == known(experiment(site_dirs=str(folder))) == {}
    assert known(experiment(site_rows="20, 3,5")) == {0: 20, 1: 3, 2: 5}
    parted = Experiment.from_values({"num-clients": 3})
    assert sorted(known(parted).values()) == [479, 479, 480]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": "north, no/rth"}, "name 'no/rth': expected letters"),
        ({"sites": "north,,south"}, "name ''"),
        ({"sites": "north, north"}, "names 'north' twice"),
        ({"site_rows": "20, 30"}, "expected 3 whole numbers with commas between them"),
        ({"site_rows": "20, 30, many"}, "expected 3 whole numbers"),
        ({"sites": "", "site_rows": "3"}, "key site-rows = '3' has no effect"),
        ({"num_clients": 7}, "key num-clients = 7 cannot go with sites = '"),
        ({"sites": "", "site_dirs": "/srv"}, "the sites in it need names"),
        ({"partitioner": "shards"}, "key partitioner = 'shards' cannot go with sites"),
        ({"client_test_fraction": 0.1}, "key client-test-fraction = 0.1 cannot"),
        ({"server_validation_fraction": 0.1}, "key server-validation-fraction = 0.1"),
        ({"label_noise": 0.5}, "key label-noise = 0.5 cannot go with sites"),
        ({"score_whole_test": True}, "key score-whole-test = True cannot go"),
        ({"method": "cffl"}, "method cffl cannot go with sites"),
        ({"dataset": "reddit", "model": "lstm-reddit"}, "its rows have no class"),
        ({"public_size": 10}, "no rows can be held out; set public-dir = 'auto'"),
        ({"public_dir": "/srv/images"}, "set 'auto', and FEDSUITE_PUBLIC at each node"),
        ({"state_dir": "/srv/state"}, "set 'auto', and FEDSUITE_STATE at each node"),
        ({"engine": "ray"}, "rehearse with site-dirs"),
        ({"engine": "deployment", "site_dirs": "/srv"}, "rehearse with site-dirs"),
    ],
)
def test_what_cannot_be_done_where_nobody_has_all_rows(
    changes: dict[str, Value], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(**changes)
    assert message in str(caught.value)


# Rehearsals


def test_a_rehearsal_needs_a_folder_for_each_site(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give site-dirs = FOLDER to rehearse"):
        Worker(experiment(), MemoryStore())
    given = experiment(sites="north, west", site_dirs=str(folder))
    with pytest.raises(DataError, match="no sub-folder 'west'"):
        Worker(given, MemoryStore())


def test_a_rehearsal_finds_bad_data_before_it_starts(tmp_path: Path) -> None:
    write(tmp_path / "north" / "rows.parquet", {"label": [1, 2]})
    given = experiment(sites="north", site_dirs=str(tmp_path))
    with pytest.raises(
        DataError, match=r"site north: .*rows.parquet: no column of numbers"
    ):
        Worker(given, MemoryStore())


def test_a_rehearsal_reads_what_the_nodes_configuration_will_say(tmp_path: Path) -> None:
    settings = tmp_path / "north" / "site.toml"
    settings.parent.mkdir()
    settings.write_text('label-column = "digit"\ndata-adapter = "own:read"\n')
    (site,) = rehearsal_sites(tmp_path, ["north"])
    assert (site.name, site.label_column, site.adapter) == ("north", "digit", "own:read")
    assert site.data == settings.parent
    settings.write_text('data = "/etc"\n')
    with pytest.raises(ConfigError, match="data is the folder itself"):
        rehearsal_sites(tmp_path, ["north"])
    settings.write_text("data-adapter")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        rehearsal_sites(tmp_path, ["north"])


# Nodes


def test_no_run_makes_a_node_open_another_folder(folder: Path) -> None:
    own = {"data": str(folder / "north")}
    site = node_site(experiment(), own)
    assert site is not None
    assert site.data == folder / "north"
    plain = Experiment.from_values({**DIVIDED, "data-dir": str(folder)})
    with pytest.raises(ConfigError, match="this node has data of its own"):
        node_site(plain, own)
    assert node_site(plain, {"partition-id": 0}) is None
    with pytest.raises(ConfigError, match="this node names none"):
        node_site(experiment(), {"partition-id": 0})
    with pytest.raises(ConfigError, match="key site-dirs rehearses"):
        node_site(experiment(site_dirs=str(folder)), own)


def a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path) -> Context:
    monkeypatch.setenv("FEDSUITE_STATE", str(tmp_path / "state"))
    values = dict(experiment().values) | {"run-name": tmp_path.name}
    config: dict[str, Value] = {"data": str(data)}
    return Context(1, 1, config, RecordDict(), values)


def test_a_node_has_its_own_rows_whatever_its_number(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = a_node(tmp_path, monkeypatch, folder / "south")
    # A hash of the columns' names, and nothing else.
    assert fingerprints_from_context(context) == {
        "columns": fingerprint(PIXELS),
        "training-rows": 479,
    }
    own = federated_data(experiment(site_dirs=str(folder))).client(2)
    for number in (0, 1, 2):
        client: Any = client_from_context(context, number)
        assert client.train_data.features.equal(own.train.features)


def test_the_hello_of_a_site_with_bad_data_tells_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = write(tmp_path / "smith" / "rows.parquet", {"label": [1, 77]})
    context = a_node(tmp_path, monkeypatch, secret.parent)
    with caplog.at_level(logging.ERROR), pytest.raises(FedsuiteError) as caught:
        fingerprints_from_context(context)
    assert str(caught.value) == "the site's data cannot be used: its own log says why"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "smith" in caplog.text
    assert "no column of numbers" in caplog.text
