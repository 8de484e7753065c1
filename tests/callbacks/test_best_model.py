"""The best model of rounds that are lost, and what names the round."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedsuite
from fedsuite.callbacks import Callback
from fedsuite.callbacks.best_model import BestModel
from fedsuite.callbacks.checkpoint_writer import CheckpointWriter
from fedsuite.core.files import safetensors_arrays
from fedsuite.results.reader import Run
from fedsuite.results.writer import CHECKPOINTS, RunFolder
from fedsuite.rounds.checkpoint import load_latest
from fedsuite.rounds.strategy import FederatedStrategy
from tests.callbacks.reports import a_report, a_state

BEST = "best-model.safetensors"


class Killed(BaseException):
    """The process dies."""


def played(folder: RunFolder, scores: list[float], *, killed_in: int = 0) -> None:
    """Play rounds, whose model is filled with the score; go on from the last checkpoint."""
    keeper = BestModel("score", folder)
    writer = CheckpointWriter(folder, "print", every=1, others=[keeper])
    checkpoint = load_latest(folder.path / CHECKPOINTS, "print")
    state = a_state()
    if checkpoint is not None:
        writer.recall(checkpoint)
        checkpoint.restore(state)
    callbacks: list[Callback] = [keeper, writer]
    for callback in callbacks:
        callback.on_start(state)
    for server_round in range(state.server_round + 1, len(scores) + 1):
        score = scores[server_round - 1]
        state.arrays, state.server_round = a_state(score).arrays, server_round
        for callback in callbacks:
            if server_round == killed_in and callback is writer:
                raise Killed
            callback.on_round_end(state, a_report(server_round, score=score))


def best(folder: Path) -> tuple[float, dict[str, Any]]:
    """Return the score of the best model, and what its file says of it."""
    arrays, note = safetensors_arrays((folder / BEST).read_bytes())
    assert np.all(arrays["weight"] == arrays["weight"][0, 0])
    return round(float(arrays["weight"][0, 0]), 6), json.loads(note)


def test_the_file_names_round_metric_and_value(folder: RunFolder) -> None:
    played(folder, [0.1, 0.4, 0.3])
    score, choice = best(folder.path)
    assert score == 0.4
    assert choice == {"round": 2, "metric": "score", "value": 0.4}
    assert list(load_file(folder.path / BEST)) == ["weight"], "anybody can read it"


@pytest.mark.parametrize("killed_in", [1, 2, 3, 4])
def test_a_best_model_of_a_lost_round_is_replaced(
    killed_in: int, folder: RunFolder
) -> None:
    """Killed between the best model and the checkpoint; all is worse the second time."""
    before = [0.2, 0.1, 0.15, 0.25][: killed_in - 1]
    with pytest.raises(Killed):
        played(folder, [*before, 0.9], killed_in=killed_in)
    assert best(folder.path)[0] == 0.9
    later = [0.05] * (5 - len(before))
    played(folder, [*before, *later])
    expected = max(before, default=0.05)
    score, choice = best(folder.path)
    assert score == expected and choice["value"] == expected
    assert choice["round"] == [*before, *later].index(expected) + 1


def test_where_no_checkpoint_stands_no_best_model_does(folder: RunFolder) -> None:
    with pytest.raises(Killed):
        played(folder, [0.9], killed_in=1)
    played(folder, [])
    assert not (folder.path / BEST).exists()


def test_the_round_that_is_best_again_is_written_again(folder: RunFolder) -> None:
    with pytest.raises(Killed):
        played(folder, [0.2, 0.9], killed_in=2)
    played(folder, [0.2, 0.3, 0.1])
    assert best(folder.path) == (0.3, {"round": 2, "metric": "score", "value": 0.3})


# Whole runs


def start(output: Path, **changes: Any) -> Run:
    values = {
        "dataset": "digits",
        "model": "linear",
        "num-clients": 3,
        "num-rounds": 4,
        "checkpoint-every": 1,
        "best-model-metric": "accuracy_mean",
        "output-dir": str(output),
        "run-name": "run",
        "report": False,
        **changes,
    }
    return fedsuite.run(values)


def test_the_summary_names_the_round(tmp_path: Path) -> None:
    run = start(tmp_path)
    rows = [json.loads(line) for line in (run.path / "rounds.jsonl").open()]
    top = max(row["accuracy_mean"] for row in rows)
    first = next(row["round"] for row in rows if row["accuracy_mean"] == top)
    chosen = {"round": first, "metric": "accuracy_mean", "value": top}
    assert json.loads((run.path / "summary.json").read_text())["best_model"] == chosen
    without = start(tmp_path, **{"best-model-metric": "", "run-name": "without"})
    assert "best_model" not in json.loads((without.path / "summary.json").read_text())


def test_a_run_that_goes_on_from_an_earlier_round_has_the_best_model_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run improves; from round 3 on it stands still the second time."""
    run = start(tmp_path)
    assert json.loads((run.path / "summary.json").read_text())["best_model"]["round"] == 4
    monkeypatch.setattr(FederatedStrategy, "_stepped", lambda *_: None)
    again = fedsuite.resume(run.path, from_round=3)
    chosen = json.loads((again.path / "summary.json").read_text())["best_model"]
    assert chosen["round"] == 3
    _, note = safetensors_arrays((again.path / BEST).read_bytes())
    assert json.loads(note) == chosen
    best_arrays, last = (
        load_file(again.path / BEST),
        load_file(again.path / "model.safetensors"),
    )
    assert all(np.array_equal(best_arrays[name], last[name]) for name in last)


def test_what_the_end_made_goes_with_the_rounds_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path)
    made = ["model.safetensors", "summary.json", "report.html"]
    (run.path / "report.html").write_text("all rounds")
    (run.path / "notes.txt").write_text("mine")

    def dies(*_: Any) -> None:
        raise Killed

    for more, there in ((6, True), (None, False)):
        with monkeypatch.context() as patch:
            patch.setattr(FederatedStrategy, "configure_train", dies)
            with pytest.raises(Killed):
                fedsuite.resume(run.path, num_rounds=more, from_round=None if more else 3)
        assert [(run.path / name).exists() for name in made] == [there] * len(made)
    assert (run.path / "notes.txt").exists()
