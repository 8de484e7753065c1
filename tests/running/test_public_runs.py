"""Public data in a run: who is told what, and what is refused before it starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.data import DATASETS, loading
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.paths import refuse_relative_paths
from fedsuite.results.groups import group_runs
from fedsuite.rounds.membership import Directory
from fedsuite.running import node_app as client_app
from fedsuite.running.server_parts import public_data
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import source_hash
from fedsuite.training.base import FederatedClient
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.data import parquet_files
from tests.helpers import matrix_app
from tests.small_runs import SMALL

PUBLIC = {**SMALL, "public-size": 30}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSUITE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDSUITE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("FEDSUITE_DATA", raising=False)


def fingerprint(values: Mapping[str, Any]) -> str:
    return federated_data(Experiment.from_values(values)).public_set().fingerprint


def write_images(folder: Path, seed: int = 0) -> str:
    """Write eight images of the digits' form; return the folder."""
    spec = DATASETS["digits"]
    images = parquet_files.random_pixels(spec, 8, seed)
    table = parquet_files.table(spec, images, np.zeros(8)).select([spec.image_column])
    parquet_files.write_split(folder, "any", table)
    return str(folder)


# Clients


def test_clients_share_the_public_inputs() -> None:
    experiment = Experiment.from_values(PUBLIC)
    worker = Worker(experiment, MemoryStore())
    context: Any = None
    clients = [worker.client(context, client_id) for client_id in range(3)]
    expected = federated_data(experiment).public_set().features
    for client in clients:
        assert isinstance(client, FederatedClient)
        assert client.public is not None and torch.equal(client.public, expected)
        assert client.public is clients[0].public  # type: ignore[attr-defined]


def test_clients_have_none_without() -> None:
    worker = Worker(Experiment.from_values(SMALL), MemoryStore())
    context: Any = None
    client = worker.client(context, 0)
    assert isinstance(client, FederatedClient) and client.public is None
    assert worker.fingerprints(context) == {}


# The hello


def meet(app: ClientApp, ours: str | None, config: Mapping[str, Any] | None = None) -> None:
    with flower_identity():
        grid = LocalGrid(app, 2, dict(config or {}))
        Directory("partition", None, 1.0, source_hash(), ours).wait(grid, 1)


def refused(app: ClientApp, ours: str, config: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(RunError) as caught:
        meet(app, ours, config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def worker_app(values: Mapping[str, Any]) -> ClientApp:
    return client_app_for(Worker(Experiment.from_values(values), MemoryStore()))


@pytest.mark.parametrize("app", [worker_app, lambda values: client_app.app])
def test_nodes_with_other_public_data_end_the_run(app: Any) -> None:
    config = Experiment.from_values({**PUBLIC, "run-name": "r"}).values
    theirs, ours = fingerprint(config), fingerprint({**PUBLIC, "public-used": 29})
    meet(app(config), theirs, config)
    meet(app(config), None, config)
    words = refused(app(config), ours, config)
    assert words.startswith("node 1000 has other public data than the ServerApp")
    assert f"({theirs[:12]} and {ours[:12]}): give both the same" in words


def test_nodes_without_public_data_are_named() -> None:
    assert "ServerApp (none and 0000" in refused(matrix_app(), "0" * 64)


def test_a_node_that_lacks_the_folder_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSUITE_PUBLIC", str(tmp_path / "typo"))
    missing = {**SMALL, "public-dir": "/on/the/server", "run-name": "r"}
    words = refused(client_app.app, "0" * 64, Experiment.from_values(missing).values)
    assert "node 1000 failed the hello" in words
    assert "folder (a path of this node) does not exist" in words


def test_without_public_data_the_hello_loads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(context: Context) -> Worker:
        raise AssertionError("no worker is needed")

    monkeypatch.setattr(client_app, "_worker_from", fail)
    meet(client_app.app, None, Experiment.from_values(SMALL).values)


def test_the_strategy_hands_the_fingerprint_on() -> None:
    """A strategy in a program of one's own: its nodes have none."""
    strategy = FedAvg(identity="partition", num_clients=2, public_fingerprint="0" * 64)
    with flower_identity(), pytest.raises(RunError, match="other public data"):
        strategy.directory.wait(LocalGrid(matrix_app(), 2), 1)


# Runs


def test_a_run_records_its_public_data() -> None:
    run = fedsuite.run({**PUBLIC, "run-name": "public"})
    data = run.manifest["data"]
    assert data["public-rows"] == data["public-rows-held-out"] == 30
    assert data["public-fingerprint"] == fingerprint(PUBLIC)
    plain = fedsuite.run({**SMALL, "run-name": "plain"})
    assert not any(name.startswith("public") for name in plain.manifest["data"])
    assert plain.manifest["data_fingerprint"] != run.manifest["data_fingerprint"]
    used = fedsuite.run({**PUBLIC, "public-used": 10, "run-name": "used"})
    assert used.manifest["data_fingerprint"] == run.manifest["data_fingerprint"]


def test_the_server_tells_its_strategy_what_to_expect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Worker, "fingerprints", lambda self, context: {"public": "f00d"})
    ours = fingerprint(PUBLIC)[:12]
    with pytest.raises(RunError, match=rf"other public data .*\(f00d and {ours}\)"):
        fedsuite.run({**PUBLIC, "run-name": "one"})


def test_a_method_that_needs_public_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FedAvg, "PARTS", frozenset({"public_rows"}))
    words = "method fedavg needs public data: set public-size, such as 200, or public-dir"
    with pytest.raises(ConfigError, match=words):
        fedsuite.run({**SMALL, "run-name": "one"})
    assert not (tmp_path / "runs" / "one").exists()
    folder = write_images(tmp_path / "own")
    for values in (PUBLIC, {**SMALL, "public-dir": folder}):
        experiment = Experiment.from_values(values)
        found = public_data(experiment, federated_data(experiment))
        assert found is not None and found.fingerprint == fingerprint(values)


# Folders of one's own


def test_each_machine_may_have_its_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**SMALL, "public-dir": "auto", "run-name": "one"}
    with pytest.raises(ConfigError, match="set the environment variable FEDSUITE_PUBLIC"):
        fedsuite.run(values)
    folder = write_images(tmp_path / "own")
    monkeypatch.setenv("FEDSUITE_PUBLIC", folder)
    run = fedsuite.run({**values, "run-name": "two"})
    assert run.experiment["public-dir"] == "auto"
    named = fingerprint({**SMALL, "public-dir": folder})
    assert run.manifest["data"]["public-fingerprint"] == named
    refuse_relative_paths(Experiment.from_values(values).values)


def test_own_images_are_found_by_an_absolute_path(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "own")
    run = fedsuite.run({**SMALL, "public-dir": "own", "run-name": "one"})
    assert run.experiment["public-dir"] == folder
    assert run.manifest["data"]["public-rows"] == 8
    with pytest.raises(ConfigError, match="key public-dir = 'own': expected an absolute"):
        refuse_relative_paths(Experiment.from_values({"public-dir": "own"}).values)
    refuse_relative_paths(Experiment.from_values({"public-dir": folder}).values)
    refuse_relative_paths(Experiment.from_values({}).values)


def test_runs_on_other_images_are_other_experiments(tmp_path: Path) -> None:
    """Wherever the images lie, and whatever the seed."""
    first = write_images(tmp_path / "first")
    moved = write_images(tmp_path / "moved")
    other = write_images(tmp_path / "other", seed=1)
    runs = [
        fedsuite.run({**SMALL, "run-name": f"r{k}", "public-dir": folder, "seed": k % 2})
        for k, folder in enumerate((first, moved, other, ""))
    ]
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    prints = [run.manifest["data"].get("public-fingerprint", "")[:12] for run in runs]
    assert groups[0].label == f"fedavg, public-dir={prints[0]}"
    assert groups[1].label == f"fedavg, public-dir={prints[2]}"


def test_a_run_goes_on_with_the_public_data_that_it_had(tmp_path: Path) -> None:
    write_images(tmp_path / "own")
    path = fedsuite.run({**SMALL, "public-dir": "own", "run-name": "one"}).path
    longer = fedsuite.resume(path, num_rounds=2)
    assert longer.rounds[-1]["round"] == 2
    before = longer.manifest["data"]["public-fingerprint"][:12]
    write_images(tmp_path / "own", seed=1)
    loading._divided.cache_clear()
    with pytest.raises(RunError, match=rf"other public data \({before} then, .* now\)"):
        fedsuite.resume(path, num_rounds=3)
