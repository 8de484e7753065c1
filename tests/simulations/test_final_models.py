"""Final models of runs: they score what the run recorded, or one line says what lacks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from fedsuite.core.errors import RunError
from fedsuite.models.arrays import model_arrays
from fedsuite.results.reader import load_run
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.evaluation import evaluate_model
from simulations.fedal.final_models import FinalModels
from tests.simulations.small_fedal import FEDAL, MIXED, fedal_run, small_run

RUNS: dict[str, dict[str, Any]] = {
    "FedAL, two networks": FEDAL,
    "Standalone": {**MIXED, "method": "standalone"},
    "FedAvg, one model": {"method": "fedavg"},
}


@pytest.mark.parametrize("keys", RUNS.values(), ids=RUNS)
def test_models_score_what_the_run_recorded(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = small_run(tmp_path / "run", **keys)
    final = FinalModels(run)
    assert final.server_round == 2
    recorded = run.client_values("evaluate", "whole_test_loss", 2)
    test = final.data.test_set()
    found = [evaluate_model(model, test)[0] for model in final.models()]
    assert found == [recorded[k] for k in range(4)]
    assert len(set(found)) == (1 if keys["method"] == "fedavg" else 4)


def test_state_that_lies_elsewhere(tmp_path: Path) -> None:
    run = fedal_run(tmp_path / "runs" / "one", state_dir=str(tmp_path / "state"))
    assert not (run.path / "state").exists()
    recorded = run.client_values("evaluate", "whole_test_loss", 2)
    final = FinalModels(run)
    model = next(final.models())
    assert evaluate_model(model, final.data.test_set())[0] == recorded[0]
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(RunError, match=r"state is not in .*state/one: copy it"):
        next(FinalModels(run).models())


def test_one_model_of_each_network_on_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path / "run", method="standalone", num_rounds=1, **MIXED)
    models = list(FinalModels(run).models())[2:]
    server = {
        f"{k}/{n}": a for k, m in enumerate(models) for n, a in model_arrays(m).items()
    }
    save_file(server, run.path / "model.safetensors")
    text = (run.path / "experiment.toml").read_text()
    text = text.replace('"standalone"', '"fedavg"')
    text = text.replace('client-initialisation = "own"\n', "")
    (run.path / "experiment.toml").write_text(text)
    monkeypatch.setattr(FedAvg, "PARTS", frozenset({"networks"}))
    final = FinalModels(load_run(run.path))
    assert final.server_round == 1
    found = [model_arrays(model) for model in final.models()]
    for client_id, arrays in enumerate(found):
        for name, array in model_arrays(models[client_id % 2]).items():
            assert (arrays[name] == array).all()


def test_without_a_checkpoint(tmp_path: Path) -> None:
    run = fedal_run(tmp_path / "run", checkpoint_every=0)
    with pytest.raises(RunError, match=r"no checkpoint tells .* checkpoint-every above 0"):
        FinalModels(run).arrays(0)


def test_methods_with_personal_models_are_refused(tmp_path: Path) -> None:
    for method in ("ditto", "fedper", "cgsv"):
        run = small_run(tmp_path / method, method=method, num_rounds=1)
        with pytest.raises(RunError, match=f"method {method} may score .* their own"):
            FinalModels(run)


def test_what_is_damaged_or_gone(tmp_path: Path) -> None:
    run = small_run(tmp_path / "a", num_rounds=1)
    (run.path / "model.safetensors").unlink()
    with pytest.raises(RunError, match="its final model cannot be read"):
        FinalModels(run)
    run = small_run(tmp_path / "b", method="standalone", num_rounds=1)
    (path,) = (run.path / "state" / "2").iterdir()
    arrays = load_file(path)
    save_file({n: a for n, a in arrays.items() if "weight" not in n}, path)
    final = FinalModels(run)
    final.arrays(1)
    with pytest.raises(RunError, match=r"of client 2 has no array \S*weight"):
        final.arrays(2)
    path.unlink()
    with pytest.raises(RunError, match=r"client 2: state .* cannot be read"):
        FinalModels(run).arrays(2)


def test_other_data_than_the_run_had(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", num_rounds=1)
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["data_fingerprint"] = "f00d"
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="partition cannot be made again"):
        FinalModels(load_run(run.path))
