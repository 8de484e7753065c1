"""The same experiment gives the same bits in this process, in Ray, in real processes."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.engines.api import Engine

EXPERIMENT: Mapping[str, Value] = {
    "method": "fedavg",
    "dataset": "digits",
    "num-clients": 4,
    "partitioner": "shards",
    "num-rounds": 2,
    "local-epochs": 1,
    "evaluate-every": 2,
    "seed": 11,
    "report": False,
}
DECOMPOSED: Mapping[str, Value] = {
    "model": "cnn-shallow",
    "decomposition": True,
    "coefficient-period": 2,
    "num-rounds": 3,
    "evaluate-every": 1,
}
# Methods whose clients keep something from one round to the next, or rows to validate on,
# and adapters of ranks that differ between the clients of a node.
STATEFUL: Mapping[str, Mapping[str, Value]] = {
    "decomposed-scaffold": {
        **DECOMPOSED,
        "method": "scaffold",
        "local-coefficients": "freeze",
    },
    "personal-atoms": {**DECOMPOSED, "personal-atoms": True},
    "ditto": {"method": "ditto"},
    "compressed": {
        "method": "scaffold",
        "compress-up": "top-k",
        "compress-down": "qsgd",
        "num-rounds": 3,
        "evaluate-every": 1,
    },
    "lora-ranks": {
        "model": "mlp",
        "hidden-width": 8,
        "hidden-layers": 2,
        "lora-rank": 8,
        "lora-average": "products",
        "client-settings": "1: lora-rank=2; 3: lora-rank=1",
        "travels": "trainable",
        "evaluate-every": 1,
    },
    "validation-rows": {
        "method": "ditto",
        "client-validation-fraction": 0.2,
        "best-model-metric": "auto",
        "early-stop-metric": "validation_accuracy_mean",
        "early-stop-patience": 1,
        "num-rounds": 4,
        "evaluate-every": 1,
    },
    "fedal": {
        "method": "fedal",
        "client-models": "mlp:hidden-width=32, cnn-shallow, linear",
        "client-model-assignment": "round-robin",
        "public-size": 100,
        "num-rounds": 2,
        "transfer-steps": 2,
        "local-steps": 3,
        "evaluate-every": 1,
    },
}

# Methods with several models, or two, or networks of several widths.
MODELS: Mapping[str, Mapping[str, Value]] = {
    "fedbabu": {},
    "fml": {},
    "fedala": {"num-rounds": 3},
    "ifca": {"num-rounds": 3},
    "fedem": {"num-rounds": 3},
    "moon": {"num-rounds": 3},
    "heterofl": {
        "client-models": "mlp:hidden-width=64, mlp:hidden-width=16",
        "client-model-assignment": "round-robin",
    },
}


def run(
    folder: Path, name: str, engine: Engine, num_supernodes: int, **changes: Value
) -> tuple[bytes, str]:
    """Return model and per-client rows of a run."""
    places = {"output-dir": str(folder), "run-name": name}
    result = fedsuite.run(
        {**EXPERIMENT, **changes},
        engine=engine,
        overrides=places,
        num_supernodes=num_supernodes,
    )
    assert result.manifest["status"] == "finished"
    assert result.manifest["engine"] == engine
    file = result.path / "model.safetensors"
    return file.read_bytes() if file.exists() else b"", told(result.path)


def told(folder: Path) -> str:
    """Return all that clients and method told of a run, but times."""
    rounds = (folder / "rounds.jsonl").read_text().splitlines()
    rows = [
        {k: v for k, v in json.loads(line).items() if "seconds" not in k} for line in rounds
    ]
    return (folder / "clients.jsonl").read_text() + json.dumps(rows)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    return run(tmp_path_factory.mktemp("local"), "reference", "local", 0)


@pytest.mark.parametrize("num_supernodes", [1, 2, 3])
def test_local_engine_on_fewer_nodes(
    reference: tuple[bytes, str], tmp_path: Path, num_supernodes: int
) -> None:
    assert run(tmp_path, "run", "local", num_supernodes) == reference


@pytest.mark.usefixtures("forked_workers")
def test_validation_rows_on_fewer_nodes_and_in_two_processes(tmp_path: Path) -> None:
    keys = STATEFUL["validation-rows"]
    local = run(tmp_path, "local", "local", 0, **keys)
    assert run(tmp_path, "nodes", "local", 2, **keys) == local
    assert run(tmp_path, "workers", "local", 0, **keys, workers=2) == local
    best = {
        (tmp_path / name / "best-model.safetensors").read_bytes()
        for name in ("local", "nodes", "workers")
    }
    assert len(best) == 1


@pytest.mark.slow
def test_coded_changes_in_two_processes_and_on_fewer_nodes(tmp_path: Path) -> None:
    keys = STATEFUL["compressed"]
    local = run(tmp_path, "local", "local", 0, **keys)
    assert run(tmp_path, "workers", "local", 0, **keys, workers=2) == local
    assert run(tmp_path, "nodes", "local", 2, **keys) == local


@pytest.mark.slow
@pytest.mark.parametrize("num_supernodes", [4, pytest.param(2, marks=pytest.mark.smoke)])
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_other_engines(
    reference: tuple[bytes, str], tmp_path: Path, engine: Engine, num_supernodes: int
) -> None:
    assert run(tmp_path, "run", engine, num_supernodes) == reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "ray") for name in STATEFUL if name != "fedal"),
        pytest.param("fedal", "ray", marks=pytest.mark.smoke),
        ("decomposed-scaffold", "deployment"),
        ("lora-ranks", "deployment"),
        ("validation-rows", "deployment"),
        ("fedal", "deployment"),
    ],
)
def test_methods_with_client_state(name: str, engine: Engine, tmp_path: Path) -> None:
    local = run(tmp_path, "local", "local", 0, **STATEFUL[name])
    assert run(tmp_path, "other", engine, 2, **STATEFUL[name]) == local


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["ray", "deployment"])
@pytest.mark.parametrize("method", MODELS)
def test_methods_with_several_models(method: str, engine: Engine, tmp_path: Path) -> None:
    local = run(tmp_path, "local", "local", 0, method=method, **MODELS[method])
    assert run(tmp_path, "other", engine, 2, method=method, **MODELS[method]) == local
