"""The same experiment gives the same bits in this process, in Ray, in real processes."""

from pathlib import Path

import pytest

import fedsuite
from fedsuite.api import Engine

EXPERIMENT = {
    "method": "fedavg",
    "dataset": "digits",
    "num-clients": 4,
    "partitioner": "shards",
    "num-rounds": 3,
    "local-epochs": 1,
    "evaluate-every": 3,
    "seed": 11,
}


def run(folder: Path, name: str, engine: Engine, num_supernodes: int) -> tuple[bytes, str]:
    """Return model and per-client rows of a run."""
    places = {"output-dir": str(folder), "run-name": name}
    result = fedsuite.run(
        EXPERIMENT, engine=engine, overrides=places, num_supernodes=num_supernodes
    )
    assert result.manifest["status"] == "finished"
    assert result.manifest["engine"] == engine
    model = (result.path / "model.safetensors").read_bytes()
    return model, (result.path / "clients.jsonl").read_text()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    return run(tmp_path_factory.mktemp("local"), "reference", "local", 0)


@pytest.mark.parametrize("num_supernodes", [1, 2, 3])
def test_local_engine_on_fewer_nodes(
    reference: tuple[bytes, str], tmp_path: Path, num_supernodes: int
) -> None:
    assert run(tmp_path, "run", "local", num_supernodes) == reference


@pytest.mark.slow
@pytest.mark.parametrize("num_supernodes", [4, 2])
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_other_engines(
    reference: tuple[bytes, str], tmp_path: Path, engine: Engine, num_supernodes: int
) -> None:
    assert run(tmp_path, "run", engine, num_supernodes) == reference
