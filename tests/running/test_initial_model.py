"""Key ``initial-model``: a run starts from another run's model, or says why it cannot."""

import hashlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fedsuite
from fedsuite.callbacks import Callback
from fedsuite.core.errors import ConfigError
from tests.helpers import Trace
from tests.small_runs import SMALL


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("earlier")
    return fedsuite.run({**SMALL, "output-dir": str(folder), "run-name": "run"})


def run(tmp_path, name="later", **keys):
    return fedsuite.run({**SMALL, "output-dir": str(tmp_path), "run_name": name}, **keys)


class Start(Callback):
    """Keeps what a run starts with."""

    def on_start(self, state):
        self.arrays = {name: array.numpy() for name, array in state.arrays.items()}


@pytest.mark.parametrize("method", ["fedavg", "ditto", "heterofl"])
def test_a_run_starts_from_another_runs_model(method, earlier, tmp_path, capsys):
    start = Start()
    later = run(tmp_path, method=method, initial_model=str(earlier.path), callbacks=[start])
    told = {name.removeprefix("0/"): array for name, array in start.arrays.items()}
    for name, array in load_file(earlier.path / "model.safetensors").items():
        assert np.array_equal(told[name], array)
    assert len(later.manifest["initial_model"]) == 64
    words = "what clients keep for themselves begins as without it"
    assert (words in capsys.readouterr().out) == (method == "ditto")


def test_a_file_is_as_good_as_its_folder(earlier, tmp_path):
    shutil.copy(earlier.path / "model.safetensors", tmp_path / "m.safetensors")
    runs = [
        run(tmp_path, f"r{k}", initial_model=str(path))
        for k, path in enumerate((earlier.path, tmp_path / "m.safetensors"))
    ]
    prints = {r.manifest["initial_model"] for r in runs}
    models = {
        hashlib.sha256((r.path / "model.safetensors").read_bytes()).digest() for r in runs
    }
    assert len(prints) == len(models) == 1
    assert "initial_model" not in run(tmp_path, "without").manifest


@pytest.mark.parametrize("method", ["fedper", "standalone", "ifca"])
def test_methods_without_one_model_refuse_it(method, earlier, tmp_path):
    with pytest.raises(ConfigError, match=f"key initial-model = .*method .*{method}"):
        run(tmp_path, method=method, initial_model=str(earlier.path))
    assert not (tmp_path / "later").exists()


def test_another_network_is_refused_by_the_name_of_an_array(earlier, tmp_path):
    with pytest.raises(ConfigError, match="this network"):
        run(tmp_path, model="mlp", initial_model=str(earlier.path))
    arrays = load_file(earlier.path / "model.safetensors")
    name = next(iter(arrays))
    save_file({**arrays, name: arrays[name][:1]}, tmp_path / "short.safetensors")
    with pytest.raises(ConfigError, match=f"its {name} is of shape"):
        run(tmp_path, initial_model=str(tmp_path / "short.safetensors"))
    with pytest.raises(ConfigError, match="cannot be read"):
        run(tmp_path, initial_model=str(tmp_path / "nowhere"))


def test_a_run_that_goes_on_needs_the_file_no_more(earlier, tmp_path):
    copy = tmp_path / "m.safetensors"
    shutil.copy(earlier.path / "model.safetensors", copy)
    later = run(tmp_path, initial_model=str(copy), num_rounds=2)
    whole = (later.path / "model.safetensors").read_bytes()
    stopped = run(tmp_path, "stopped", initial_model=str(copy), num_rounds=1)
    copy.unlink()
    fedsuite.resume(stopped.path, num_rounds=2)
    assert (stopped.path / "model.safetensors").read_bytes() == whole


def test_callbacks_and_keys_from_python(tmp_path):
    trace = Trace()
    made = run(tmp_path, callbacks=[trace], num_rounds=2)
    assert len(trace.reports) == made.last_round == 2
    with pytest.raises(ConfigError, match="callbacks: with engine = 'ray'"):
        run(tmp_path, "ray", callbacks=[trace], engine="ray")
    with pytest.raises(ConfigError, match="unknown key 'num-round'"):
        run(tmp_path, "wrong", num_round=2)
