"""What other packages add, in the ServerApp and the ClientApp that Flower's engines run."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.engines.api import at_home
from fedsuite.engines.local import LocalGrid
from fedsuite.engines.staging import stage_keys
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.plug_ins import ALLOWED_CODE_VARIABLE
from fedsuite.running import node_app, server
from fedsuite.workarounds.identity import flower_identity
from tests.plug_ins.fakes import example
from tests.small_runs import final_model

ADDED: Mapping[str, Value] = {
    "method": "anchored",
    "anchored-way": 0.25,
    "model": "two-layers",
    "dataset": "stripes",
}
CODE: Mapping[str, Value] = {
    "model": "fedsuite_example.model:TwoLayers",
    "dataset": "fedsuite_example.data:read",
}
EXPERIMENT: Mapping[str, Value] = {
    "partitioner": "dirichlet",
    "num-clients": 4,
    "num-rounds": 2,
    "report": False,
    "device": "cpu",
}


def run_by_flower(folder: Path, values: Mapping[str, Value]) -> None:
    """Run an experiment through the staged app's table and both of fedsuite's apps."""
    config = dict(at_home(Experiment.from_values(values)).values)
    text = (stage_keys(folder / "app", config) / "pyproject.toml").read_text()
    told = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    context = Context(1, 1, {}, RecordDict(), told)
    with flower_identity(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSUITE_STATE", str(folder / "state"))
        server.app(LocalGrid(node_app.app, 2, told), context)


@pytest.mark.parametrize("names", [ADDED, CODE], ids=["by name", "by code"])
def test_the_bits_are_those_of_the_local_engine(
    names: Mapping[str, Value], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED_CODE_VARIABLE, ",".join(str(v) for v in CODE.values()))
    places = {**EXPERIMENT, **names, "output-dir": str(tmp_path)}
    with example(tmp_path / "installed"):
        local = fedsuite.run({**places, "run-name": "local"})
        run_by_flower(tmp_path, {**places, "run-name": "flower"})
        as_fedavg = {**EXPERIMENT, **CODE, "output-dir": str(tmp_path)}
        plain = fedsuite.run({**as_fedavg, "run-name": "plain"})
    assert final_model(tmp_path / "flower") == final_model(local.path)
    # The method of the package is at work.
    assert (final_model(plain.path) == final_model(local.path)) == (names is CODE)


def test_a_run_is_resumed_with_its_packages_alone(tmp_path: Path) -> None:
    keys = {**EXPERIMENT, **ADDED, "output-dir": str(tmp_path), "checkpoint-every": 1}
    with example(tmp_path / "installed"):
        fedsuite.run({**keys, "run-name": "whole", "num-rounds": 3})
        fedsuite.run({**keys, "run-name": "part"})
    with pytest.raises(ConfigError, match="or a name that an installed package adds"):
        fedsuite.resume(tmp_path / "part", num_rounds=3)
    with example(tmp_path / "again"):
        resumed = fedsuite.resume(tmp_path / "part", num_rounds=3)
    assert final_model(resumed.path) == final_model(tmp_path / "whole")
