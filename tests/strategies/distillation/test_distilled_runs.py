"""CFD, FCCL and FCCL+ as experiments: what is written, refused, and resumed."""

from pathlib import Path
from typing import Any

import pytest

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import load_latest
from tests.small_runs import client_states

KEYS: dict[str, Any] = {
    "dataset": "digits",
    "num-clients": 3,
    "client-models": "linear, mlp:hidden-width=8",
    "client-model-assignment": "round-robin",
    "public-size": 30,
    "transfer-steps": 2,
    "checkpoint-every": 1,
    "report": False,
}
METHODS: dict[str, dict[str, Any]] = {
    "cfd": {"cfd-bits": 2, "cfd-target": "prob-mean"},
    "fccl": {"fccl-pretrain-epochs": 1, "fccl-target": "others-and-previous"},
    "fccl-plus": {},
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_resumed_is_uninterrupted(method: str) -> None:
    keys = {**KEYS, **METHODS[method], "method": method}
    short = fedsuite.run({**keys, "num-rounds": 2, "run-name": "short"})
    longer = fedsuite.resume(short.path, num_rounds=4)
    whole = fedsuite.run({**keys, "num-rounds": 4, "run-name": "whole"})
    assert len(client_states(whole.path)) == 3
    assert client_states(longer.path) == client_states(whole.path)
    figure = "server_loss" if method == "cfd" else "output_divergence"
    for column in (figure, "accuracy_mean", "train_transfer_loss"):
        rounds, values = longer.column(column)
        assert len(rounds) == 4
        assert values.tolist() == whole.column(column)[1].tolist()
    # The server has no model of the clients' to write.
    assert not (whole.path / "model.safetensors").exists()


def test_a_checkpoint_holds_the_server_s_network() -> None:
    keys = {**KEYS, "method": "cfd", "num-rounds": 1, "run-name": "run"}
    folder = fedsuite.run(keys).path / CHECKPOINTS
    checkpoint = load_latest(folder, Experiment.from_values(keys).fingerprint)
    assert checkpoint is not None
    names = set(checkpoint.states["method"]["arrays"])
    # The larger of the two: that with two hidden layers.
    assert sum(name.startswith("network/") for name in names) == 6
    assert sum(name.endswith("/exp_avg") for name in names) == 6


@pytest.mark.parametrize("method", METHODS)
def test_public_data_is_needed(method: str) -> None:
    keys = {"dataset": "digits", "method": method, "num-rounds": 1, "public-size": 0}
    with pytest.raises(ConfigError, match="needs public data: set public-size"):
        fedsuite.run(keys)


def test_keys_that_do_not_go_together_end_a_run_before_it_starts() -> None:
    for keys, reason in (
        (
            {"method": "cfd", "cfd-bits": 1},
            "cfd-bits = 1 cannot go with cfd-target .*; set cfd-target",
        ),
        ({"method": "cfd", "cfd-server-model": "mlp,linear"}, "expected one network"),
        ({"method": "fccl", "public-batch-size": 1}, "method fccl: a public batch of 1"),
    ):
        with pytest.raises(ConfigError, match=reason):
            fedsuite.run({**KEYS, **keys, "num-rounds": 1})


LINE = (
    "key {} has no effect with {}: no client has anything to train before its classifier, "
    "so that features are inputs; choose another model, or set 0"
)


@pytest.mark.parametrize(
    ("method", "weight", "default"),
    [
        ("fedproto", "proto-weight", 1.0),
        ("fccl-plus", "fccl-plus-similarity-weight", 3.0),
    ],
)
def test_a_term_on_features_that_no_training_moves(
    method: str, weight: str, default: float
) -> None:
    public = 0 if method == "fedproto" else 30
    keys: dict[str, Any] = {"dataset": "digits", "num-clients": 3, "num-rounds": 1}
    keys |= {"public-size": public, "report": False}
    given: tuple[dict[str, str], ...]
    given = ({"model": "linear"}, {"client-models": "linear, linear"})
    for models in given:
        [(named, networks)] = models.items()
        with pytest.raises(ConfigError) as caught:
            fedsuite.run({**keys, **models, "method": method})
        assert str(caught.value) == LINE.format(
            f"{weight} = {default}", f"{named} = {networks!r}"
        )
    assert not Path("runs").exists()
    fedsuite.run({**keys, "model": "linear", "method": method, weight: 0.0})
    mixed = {"client-models": "linear, mlp:hidden-width=64"}
    fedsuite.run(
        {**keys, **mixed, "client-model-assignment": "round-robin", "method": method}
    )
