"""fedsuite.run and fedsuite.resume, as Python programs call them."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines.api import write_report_if_wanted
from fedsuite.experiment.experiment import Experiment
from tests.small_runs import SMALL, final_model, write_experiment


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSUITE_DATA", raising=False)


def test_a_dict_and_a_file_are_the_same_experiment(tmp_path):
    path = write_experiment(tmp_path / "small.toml")
    by_dict = fedsuite.run({**SMALL, "run-name": "a"})
    by_path = fedsuite.run(path, overrides={"run-name": "b"})
    by_text = fedsuite.run(str(path), overrides={"run-name": "c"})
    assert final_model(by_dict.path) == final_model(by_path.path)
    assert final_model(by_dict.path) == final_model(by_text.path)


def test_a_run_says_what_its_method_brings(capsys):
    fedsuite.run({**SMALL, "method": "fedakd", "run-name": "one"})
    line, *more = capsys.readouterr().out.splitlines()
    assert line == 'method fedakd brings optimizer = "adam", learning-rate = 0.001'
    assert not any(other.startswith("method ") for other in more)
    fedsuite.run({**SMALL, "run-name": "two"})
    assert "brings" not in capsys.readouterr().out


def made_by_exec() -> Callable[..., object]:
    names: dict[str, Callable[..., object]] = {}
    exec("def network(): ...", {}, names)
    return names["network"]


@pytest.mark.parametrize("network", [lambda: None, partial(max, 1), made_by_exec()])
def test_a_function_that_workers_cannot_import_is_refused(network):
    with pytest.raises(ConfigError, match=r"key model: .* put it into a module"):
        fedsuite.run({**SMALL, "model": network})


def test_what_a_run_returns():
    run = fedsuite.run({**SMALL, "run-name": "one"}, seed=3)
    assert run.path == Path("runs/one").absolute()
    assert [row["round"] for row in run.rounds] == [1]
    assert run.manifest["status"] == "finished"
    assert (run.experiment["seed"], run.manifest["seed"]) == (3, 3)
    assert run.summary["rounds"] == 1
    assert len(run.client_values("evaluate", "accuracy")) == 4
    assert (run.path / "model.safetensors").is_file()


def test_a_run_on_shifted_inputs_records_the_shift():
    """Clients share rows, and are tested on others; one process or three, the same bits."""
    shifted = {
        "partitioner": "covariate-shift",
        "shift-dimensions": 8,
        "client-test-fraction": 0.2,
    }
    runs = [
        fedsuite.run({**SMALL, **shifted, "run-name": f"r{i}"}, num_supernodes=i)
        for i in (1, 3)
    ]
    assert final_model(runs[0].path) == final_model(runs[1].path)
    found = runs[0].shifts()
    assert found == runs[1].shifts()
    sizes = runs[0].class_counts("train").sum(axis=1)
    assert len(found) == len(sizes) == 4
    assert all(0 < shift.distinct < size for shift, size in zip(found, sizes, strict=True))
    assert min(shift.squared_shift for shift in found) > 1


def test_the_seed_decides_the_bits():
    runs = [fedsuite.run({**SMALL, "run-name": f"r{i}"}, seed=i // 2) for i in range(4)]
    models = [final_model(run.path) for run in runs]
    assert models[0] == models[1]
    assert models[2] == models[3]
    assert models[0] != models[2]


def test_the_number_of_nodes_changes_no_bit():
    apart = fedsuite.run({**SMALL, "run-name": "apart"})
    together = fedsuite.run({**SMALL, "run-name": "together"}, num_supernodes=3)
    assert final_model(apart.path) == final_model(together.path)


def test_arguments_win_over_the_experiment():
    given = {**SMALL, "seed": 1, "engine": "ray", "learning-rate": 0.5}
    run = fedsuite.run(given, engine="local", seed=2, overrides={"learning-rate": 0.1})
    assert run.experiment["engine"] == "local"
    assert run.experiment["seed"] == 2
    assert run.experiment["learning-rate"] == 0.1
    assert given["seed"] == 1


def test_runs_of_one_second_have_folders_of_their_own(monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    monkeypatch.setattr("fedsuite.engines.api.datetime", Stopped)
    names = [fedsuite.run(SMALL).path.name for _ in range(3)]
    stem = "fedavg-digits-s0-20260102-030405"
    assert names == [stem, f"{stem}-2", f"{stem}-3"]


def test_folders_are_absolute_in_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSUITE_DATA", "data")
    run = fedsuite.run({**SMALL, "output-dir": "here", "run-name": "one"})
    assert run.experiment["output-dir"] == str(tmp_path / "here")
    assert run.experiment["data-dir"] == str(tmp_path / "data")
    named = fedsuite.run({**SMALL, "data-dir": "other", "run-name": "two"})
    assert named.experiment["data-dir"] == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("given", "arguments", "words"),
    [
        ({"engine": "cloud"}, {}, "key engine = 'cloud'"),
        ({}, {"engine": "cloud"}, "key engine = 'cloud'"),
        ({}, {"seed": -1}, "key seed = -1"),
        ({}, {"overrides": {"num_round": 3}}, "did you mean 'num-rounds'"),
        ({}, {"num_supernodes": 5}, "num-supernodes 5: expected at most"),
        ({}, {"num_supernodes": -1}, "num-supernodes -1: expected at most"),
        ({"device": "cuda"}, {}, "key device = 'cuda': this process sees no GPU"),
    ],
)
def test_bad_arguments_leave_nothing_behind(tmp_path, monkeypatch, given, arguments, words):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=words):
        fedsuite.run({**SMALL, **given}, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_what_a_strategy_refuses_is_an_error_of_configuration(tmp_path, monkeypatch):
    from fedsuite.strategies import FedAvg

    def refuse(self, **options):
        raise ValueError("seed and quorum do not go together")

    monkeypatch.setattr(FedAvg, "__init__", refuse)
    with pytest.raises(ConfigError, match=r"^method fedavg: seed and quorum do not go"):
        fedsuite.run(SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_left_as_it_is(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="runs/mine exists and is not empty"):
        fedsuite.run({**SMALL, "run-name": "mine"})
    assert [path.name for path in (tmp_path / "runs" / "mine").iterdir()] == ["thesis.txt"]


@pytest.fixture
def finished():
    return fedsuite.run({**SMALL, "num-rounds": 2, "run-name": "finished"}).path


def test_a_finished_run_is_not_resumed_but_made_longer(finished):
    for num_rounds in (None, 1, 2):
        with pytest.raises(RunError, match="is finished after round 2: give more rounds"):
            fedsuite.resume(finished, num_rounds=num_rounds)
    longer = fedsuite.resume(finished, num_rounds=4)
    at_once = fedsuite.run({**SMALL, "num-rounds": 4, "run-name": "at-once"})
    assert final_model(longer.path) == final_model(at_once.path)
    assert [row["round"] for row in longer.rounds] == [1, 2, 3, 4]
    for name in ("accuracy_mean", "train_loss"):
        assert (longer.column(name)[1] == at_once.column(name)[1]).all()
    assert longer.experiment == at_once.experiment | {"run-name": "finished"}


def test_a_run_may_be_moved(finished, tmp_path):
    moved = tmp_path / "archive" / "renamed"
    shutil.move(finished, moved)
    longer = fedsuite.resume(moved, num_rounds=3)
    assert longer.path == moved
    assert longer.experiment["output-dir"] == str(tmp_path / "archive")
    assert longer.experiment["run-name"] == "renamed"


def test_a_run_that_failed_goes_on(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    (finished / "manifest.json").write_text(json.dumps(manifest | {"status": "failed"}))
    (finished / "model.safetensors").unlink()
    again = fedsuite.resume(finished)
    assert again.manifest["status"] == "finished"
    at_once = fedsuite.run({**SMALL, "num-rounds": 2, "run-name": "at-once"})
    assert final_model(finished) == final_model(at_once.path)


def test_a_run_without_checkpoint_starts_over(tmp_path):
    run = fedsuite.run({**SMALL, "num-rounds": 2, "checkpoint-every": 0, "run-name": "a"})
    model = final_model(run.path)
    manifest = json.loads((run.path / "manifest.json").read_text())
    (run.path / "manifest.json").write_text(json.dumps(manifest | {"status": "running"}))
    again = fedsuite.resume(run.path)
    assert [row["round"] for row in again.rounds] == [1, 2]
    assert final_model(again.path) == model


def test_fewer_rounds_than_the_checkpoint_are_refused(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    (finished / "manifest.json").write_text(json.dumps(manifest | {"status": "running"}))
    with pytest.raises(RunError, match="num-rounds = 1: the run is at round 2 already"):
        fedsuite.resume(finished, num_rounds=1)


def test_checkpoint_of_another_experiment_is_refused(finished):
    other = Experiment.load(finished / "experiment.toml").replace(learning_rate=0.5)
    (finished / "experiment.toml").write_text(other.to_toml())
    model = final_model(finished)
    with pytest.raises(RunError, match="belongs to another experiment"):
        fedsuite.resume(finished, num_rounds=3)
    assert final_model(finished) == model


def test_torn_checkpoint_is_refused(finished):
    checkpoint = finished / "checkpoints" / "round-000002.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(RunError, match=r"cannot read checkpoint .*round-000002"):
        fedsuite.resume(finished, num_rounds=3)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_going_on_from_an_earlier_round_gives_the_same_bits(method, tmp_path):
    keys = SMALL | {"method": method, "num-rounds": 3, "output-dir": str(tmp_path)}
    folder = fedsuite.run(keys | {"checkpoint-every": 1}).path
    model, rows = final_model(folder), (folder / "clients.jsonl").read_bytes()
    damaged = folder / "checkpoints" / "round-000003.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 64
    damaged.write_bytes(data)
    with pytest.raises(RunError, match="--from-round 2` goes on from there"):
        fedsuite.resume(folder, num_rounds=4)
    fedsuite.resume(folder, from_round=2)
    assert final_model(folder) == model
    assert (folder / "clients.jsonl").read_bytes() == rows


def test_resuming_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="none is not a folder"):
        fedsuite.resume(tmp_path / "none")
    with pytest.raises(RunError, match=r"holds no manifest.json"):
        fedsuite.resume(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(RunError, match="the file is damaged"):
        fedsuite.resume(tmp_path)


def test_a_report_whose_parts_are_not_there_is_no_failure_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def write_report(*_: object) -> None:
        raise FileNotFoundError(2, "No such file", "page.js")

    monkeypatch.setattr("fedsuite.results.report.write_report", write_report)
    write_report_if_wanted({}, [tmp_path], tmp_path)
    assert "no report: [Errno 2] No such file: 'page.js'" in capsys.readouterr().out
