"""A run that goes on, beside clients that are still at work for the one that died."""

import time
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedsuite.core.errors import RunError
from fedsuite.core.rng import numpy_stream
from fedsuite.engines import local
from fedsuite.engines.local import LocalGrid, run_local
from fedsuite.messages.versions import exchange_of
from fedsuite.results.layout import ATTEMPT, read_manifest
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints
from fedsuite.running import server
from fedsuite.running.server import run_experiment
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.training.store import FileStore
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import digits_experiment


class Killed(BaseException):
    """The server dies."""


class NodesGrid(LocalGrid):
    """A grid of nodes that keep their states in files of their own.

    Parameters
    ----------
    folder
        Of the states.
    experiment
        What is run.
    dies_in
        Group of the messages after which the server dies; the nodes have answered.
    """

    persist_clients = prune_clients = None  # type: ignore[assignment]

    def __init__(self, folder: Path, experiment: Any, dies_in: str = "never") -> None:
        store = FileStore(folder)
        super().__init__(client_app_for(Worker(experiment, store)), 4)
        self.dies_in = dies_in
        self.sent: list[Message] = []

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        messages = list(messages)
        self.sent += messages
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if any(exchange_of(m.metadata.group_id) == self.dies_in for m in messages):
            raise Killed
        return iter(replies)


def states(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*.safetensors")
    }


def needed(run: Path) -> dict[int, str]:
    """Return the versions that a run's last checkpoint names."""
    newest = list_checkpoints(run / "checkpoints")[-1]
    return dict(Checkpoint.load(newest).client_versions)


@pytest.mark.parametrize("flwr_run_id", [None, 77])
def test_an_old_request_replaces_and_drops_nothing_of_the_run_that_goes_on(
    flwr_run_id: int | None, tmp_path: Path
) -> None:
    experiment = digits_experiment(
        method="scaffold", local_steps=2, checkpoint_every=1, num_rounds=6
    )
    run, kept = tmp_path / "run", tmp_path / "state"
    quiet = {"write": lambda line: None, "flwr_run_id": flwr_run_id}
    old = NodesGrid(kept, experiment, dies_in="5.1")
    with flower_identity():
        with pytest.raises(Killed):
            run_experiment(experiment, old, run, **quiet)  # type: ignore[arg-type]
        resumed = experiment.replace(resume=True)
        new = NodesGrid(kept, experiment)
        run_experiment(resumed, new, run, **quiet)  # type: ignore[arg-type]
        before, versions = states(kept), needed(run)
        # The nodes work on what the server that died had asked: once more, and late, and
        # to other bits, so that whatever they replace is seen.
        late = NodesGrid(kept, experiment.replace(**{"local-steps": 3}))
        list(late.send_and_receive(old.sent[-8:]))
    after = states(kept)
    assert {exchange_of(version) for version in versions.values()} == {"6.1"}
    for client_id, version in versions.items():
        name = f"{client_id}/{version}.safetensors"
        assert before[name] == after[name]
    assert before.items() <= after.items()


def test_attempts_are_numbered_even_where_the_clock_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    RunFolder.create(path, {"seed": 0}, {}).finish("stopped")
    first = read_manifest(path)[ATTEMPT]
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    for more in (1, 2):
        folder = RunFolder.resume(path, 0)
        assert folder.attempt == first + more
        folder.finish("stopped")


def test_the_first_attempt_in_a_process_adds_nothing_and_the_next_one_does(
    tmp_path: Path,
) -> None:
    experiment = digits_experiment(method="standalone", local_steps=1, num_rounds=1)
    path = run_local(experiment, tmp_path / "run").path
    assert set(needed(path).values()) == {"1.1"}
    longer = experiment.replace(**{"num-rounds": 2, "resume": True})
    run_local(longer, path)
    assert set(needed(path).values()) == {f"2.1-{read_manifest(path)[ATTEMPT]}"}


def test_noise_on_uploads_is_that_of_every_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of the noise is named by the exchange, not by who asked."""
    purposes: list[str] = []

    def noted(seed: int, purpose: str, *rest: int) -> Any:
        purposes.append(purpose)
        return numpy_stream(seed, purpose, *rest)

    monkeypatch.setattr("fedsuite.training.base.numpy_stream", noted)
    noisy = {"upload_noise_multiplier": 0.1, "upload_clip": 1.0}
    experiment = digits_experiment(local_steps=1, **noisy)
    whole = run_local(experiment.replace(**{"run-name": "whole"}), tmp_path / "whole")
    run_local(experiment.replace(**{"num-rounds": 2}), tmp_path / "part")
    part = run_local(experiment.replace(resume=True), tmp_path / "part")
    model = "model.safetensors"
    assert (whole.path / model).read_bytes() == (part.path / model).read_bytes()
    assert not any("-" in purpose.split("/")[2] for purpose in purposes)


def test_the_last_checkpoint_is_read_once_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = digits_experiment(local_steps=1, checkpoint_every=1, num_rounds=1)
    path = run_local(experiment, tmp_path / "run").path
    read = server.load_latest

    def locked(*given: Any) -> Any:
        with pytest.raises(RunError, match="in use"), RunFolder.unused(path):
            pass
        return read(*given)

    monkeypatch.setattr(server, "load_latest", locked)
    longer = experiment.replace(**{"num-rounds": 2, "resume": True})
    run_local(longer, path)
    assert read_manifest(path)["status"] == "finished"


def test_a_checkpoint_that_cannot_be_used_leaves_the_folder_unlocked_and_as_it_was(
    tmp_path: Path,
) -> None:
    experiment = digits_experiment(local_steps=1, checkpoint_every=1, num_rounds=2)
    path = run_local(experiment, tmp_path / "run").path
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    for wrong in (experiment.replace(seed=1), experiment.replace(**{"num-rounds": 1})):
        with pytest.raises(RunError, match=r"another experiment|already"):
            run_local(wrong.replace(resume=True), path)
    with RunFolder.unused(path):
        assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_what_a_running_process_spilled_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = digits_experiment(local_steps=1, num_rounds=1)
    path = run_local(experiment, tmp_path / "run").path
    spilled = path / "state" / "spilled" / "0.safetensors"
    spilled.parent.mkdir(parents=True)
    spilled.write_text("of the process that runs")
    monkeypatch.setattr(local, "Worker", None)
    other = RunFolder.resume(path, 1)
    with pytest.raises(RunError, match="in use"):
        run_local(experiment.replace(resume=True), path)
    assert spilled.exists()
    other.finish("stopped")
