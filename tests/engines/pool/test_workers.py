"""Worker processes: one process's replies and bits, and what happens when one dies."""

import os
import signal
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

import fedsuite
from fedsuite.callbacks.progress import Progress
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines.local import LocalGrid, PooledGrid
from fedsuite.engines.pool.workers import WorkerPool
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    HELLO,
    TRAIN,
)
from fedsuite.messages.versions import exchange_of
from fedsuite.models.arrays import model_arrays
from fedsuite.results.layout import MODEL, read_manifest
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.faults.runs import EXPERIMENTS
from tests.helpers import digits_experiment

pytestmark = pytest.mark.usefixtures("forked_workers")

COMPARED = (MODEL, "clients.jsonl", "events.jsonl")
"""Files of a run's folder that hold no times."""


def ran(tmp_path: Path, name: str, values, **changes):
    given = {**values, **{key.replace("_", "-"): v for key, v in changes.items()}}
    given |= {"output-dir": str(tmp_path), "run-name": name, "report": False}
    return fedsuite.run(given, engine="local").path


def held(folder: Path) -> dict[str, bytes]:
    found = {n: (folder / n).read_bytes() for n in COMPARED if (folder / n).exists()}
    for state in sorted((folder / "state").rglob("*.safetensors")):
        found[f"{state.parent.name}/{exchange_of(state.stem)}"] = state.read_bytes()
    return found


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return set(map(int, listed.split()))


@pytest.fixture(params=["a fork", "a new Python"])
def start(request, monkeypatch):
    """Start workers in one of the two ways; tests have threads, from which none forks."""
    forks = request.param == "a fork"
    monkeypatch.setattr("fedsuite.engines.pool.process._can_fork", lambda threads: forks)


@pytest.fixture
def busy_here(monkeypatch):
    """Make this process answer messages, however fast the others are.

    It looks for replies when it has to wait.
    """
    take_in = WorkerPool._take_in

    def late(self, exchange, timeout):
        return timeout is None and take_in(self, exchange, timeout)

    monkeypatch.setattr(WorkerPool, "_take_in", late)


@pytest.mark.parametrize(
    "name",
    [
        "fedakd",
        pytest.param("scaffold", marks=[pytest.mark.slow, pytest.mark.smoke]),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in sorted(set(EXPERIMENTS) - {"fedakd", "scaffold"})
        ),
    ],
)
def test_workers_end_with_the_bits_of_one_process(tmp_path, start, name):
    before = children()
    alone = held(ran(tmp_path, "alone", EXPERIMENTS[name]))
    shared = held(ran(tmp_path, "shared", EXPERIMENTS[name], workers=2))
    assert "clients.jsonl" in alone and (MODEL in alone or name == "fedal")
    assert shared == alone
    assert "workers = 2" in (tmp_path / "shared" / "experiment.toml").read_text()
    assert children() == before


def test_what_many_clients_keep_outlasts_the_replies_that_brought_it(tmp_path):
    values = digits_experiment(
        method="ditto", num_clients=16, num_rounds=3, local_steps=1, checkpoint_every=1
    ).values
    assert held(ran(tmp_path, "alone", values)) == held(
        ran(tmp_path, "shared", values, workers=2)
    )


def test_a_run_is_resumed_with_other_workers_to_the_same_bits(tmp_path):
    values = EXPERIMENTS["fedakd"]
    whole = held(ran(tmp_path, "whole", values))
    folder = ran(tmp_path, "parts", values, num_rounds=2, workers=2)
    assert fedsuite.resume(folder, num_rounds=3).path == folder
    assert read_manifest(folder)["status"] == "finished"
    assert held(folder) == whole


def test_clients_that_fail_are_rejected_as_in_one_process(tmp_path):
    values = EXPERIMENTS["fedakd"] | {"drop-out": 0.5, "num-rounds": 2, "quorum": 1}
    alone = held(ran(tmp_path, "alone", values, max_failed_rounds=5))
    shared = held(ran(tmp_path, "shared", values, max_failed_rounds=5, workers=3))
    assert b"rejected-reply" in alone["events.jsonl"]
    assert shared == alone


def test_a_worker_that_is_killed_ends_the_run_and_it_can_go_on(
    tmp_path, start, monkeypatch
):
    whole = held(ran(tmp_path, "whole", EXPERIMENTS["scaffold"]))
    before = children()
    on_round_end = Progress.on_round_end

    def kill(self, state, report):
        on_round_end(self, state, report)
        if report.server_round == 2:
            os.kill(min(children() - before), signal.SIGKILL)

    monkeypatch.setattr(Progress, "on_round_end", kill)
    with pytest.raises(
        RunError, match=r"worker process \d ended \(was killed by SIGKILL\)"
    ):
        ran(tmp_path, "killed", EXPERIMENTS["scaffold"], workers=2)
    monkeypatch.setattr(Progress, "on_round_end", on_round_end)
    assert children() == before
    folder = tmp_path / "killed"
    assert read_manifest(folder)["status"] == "failed"
    fedsuite.resume(folder)
    assert held(folder) == whole


@pytest.mark.usefixtures("busy_here")
def test_a_worker_that_dies_while_this_process_trains_ends_the_run(tmp_path, monkeypatch):
    before, answer, here = children(), PooledGrid._answer_here, []

    def kill(self, message):
        if message.metadata.message_type == TRAIN and not here:
            here.append(message)
            os.kill(min(children() - before), signal.SIGKILL)
        return answer(self, message)

    monkeypatch.setattr(PooledGrid, "_answer_here", kill)
    with pytest.raises(RunError, match=r"worker process 1 ended \(was killed by SIGKILL"):
        ran(tmp_path, "run", EXPERIMENTS["scaffold"], workers=2, clients_per_round=3)
    assert here and children() == before


@pytest.mark.slow
def test_there_is_one_process_less_beside_this_one(tmp_path, monkeypatch):
    before, seen = children(), []
    on_round_end = Progress.on_round_end

    def count(self, state, report):
        on_round_end(self, state, report)
        seen.append(len(children() - before))

    monkeypatch.setattr(Progress, "on_round_end", count)
    ran(tmp_path, "three", EXPERIMENTS["scaffold"], workers=3, num_rounds=1)
    ran(tmp_path, "one", EXPERIMENTS["scaffold"], workers=1, num_rounds=1)
    assert seen == [2, 0]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["scaffold", "fedakd"])
def test_what_clients_keep_goes_from_one_process_to_the_other(
    tmp_path, monkeypatch, name, first
):
    values = {**EXPERIMENTS[name], "clients-per-round": 3}
    alone = held(ran(tmp_path, "alone", values))
    answers, counts = WorkerPool.answers, [first]

    def in_turns(self, messages, answer_here):
        # An exchange in this process, then one in the others: never both.
        counts[0] += 1
        if counts[0] % 2:
            return map(answer_here, messages)
        return answers(self, messages, answer_here)

    monkeypatch.setattr(WorkerPool, "answers", in_turns)
    monkeypatch.setattr(WorkerPool, "_answer_one", lambda *_: False)
    assert held(ran(tmp_path, "shared", values, workers=2)) == alone
    assert counts[0] > 3


def app_here(experiment: Experiment) -> ClientApp:
    return client_app_for(Worker(experiment, MemoryStore()))


@pytest.fixture(scope="module")
def two_workers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsuite.engines.pool.process._can_fork", lambda threads: True)
        made = WorkerPool(digits_experiment(), "run", 4, 2, None)
    yield made
    made.close()


@pytest.fixture
def grid(two_workers):
    with flower_identity():
        yield PooledGrid(two_workers, app_here(digits_experiment()), 4)


def hellos(grid: PooledGrid, nodes) -> list[Message]:
    return [grid.create_message(RecordDict(), HELLO, node, "") for node in nodes]


def partitions(replies) -> list[int]:
    return [reply.content["hello"]["partition-id"] for reply in replies]


def test_messages_that_nobody_took_disturb_no_later_ones(grid):
    abandoned = grid.send_and_receive(hellos(grid, [1000, 1001, 1002, 1003] * 3))
    next(iter(abandoned))
    replies = list(grid.send_and_receive(hellos(grid, [1002, 1003])))
    assert sorted(partitions(replies)) == [2, 3]
    # Replies come as they are ready; each names the message that it answers.
    messages = hellos(grid, [1000, 1001, 1002])
    pushed = grid.push_messages(messages)
    answered = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    assert pushed == list(answered)
    pulled = grid.pull_messages(pushed)
    assert {
        m.metadata.reply_to_message_id: m.metadata.src_node_id for m in pulled
    } == answered


def test_a_node_that_there_is_not_is_an_error_reply(grid):
    replies = list(grid.send_and_receive(hellos(grid, [1000, 1004])))
    failed = [reply for reply in replies if reply.has_error()]
    assert [reply.error.reason for reply in failed] == ["there is no such node"]
    assert len(replies) == 2


@pytest.mark.usefixtures("busy_here")
def test_a_message_type_that_no_client_answers_is_an_error_reply(grid, monkeypatch):
    here = noted(monkeypatch)
    asked = [grid.create_message(RecordDict(), "query.no", 1000, "") for _ in range(9)]
    replies = list(grid.send_and_receive(asked))
    assert 0 < len(here) < len(replies) == 9
    (reason,) = {reply.error.reason for reply in replies}
    assert "no" in reason


def noted(monkeypatch) -> list[Message]:
    """Return the messages that will be answered in this process."""
    here, answer = [], PooledGrid._answer_here

    def note(self, message):
        here.append(message)
        return answer(self, message)

    monkeypatch.setattr(PooledGrid, "_answer_here", note)
    return here


def test_replies_that_are_all_kept_stay_as_they_came(grid, monkeypatch):
    experiment = digits_experiment()
    model = network_model(experiment, federated_data(experiment))
    record = to_record(model_arrays(model))

    def asked(grid):
        config = {"learning-rate": 0.1, "client-ids": [0]}
        for index in range(25):
            config = ConfigRecord({**config, "client-ids": [index % 4], "server-round": 1})
            content = RecordDict({"arrays": record, "config": config})
            yield grid.create_message(content, TRAIN, 1000 + index % 4, f"1.{index}")

    def trained(grid) -> dict[str, dict[str, bytes]]:
        # All at once: none is looked at before the last has come.
        replies = list(grid.send_and_receive(list(asked(grid))))
        return {
            reply.metadata.group_id: {
                name: array.tobytes()
                for part in reply.content.values()
                if isinstance(part, ArrayRecord)
                for name, array in to_arrays(part).items()
            }
            for reply in replies
        }

    monkeypatch.setattr(WorkerPool, "_answer_one", lambda *_: False)
    shared = trained(grid)
    assert shared == trained(LocalGrid(app_here(experiment), 4))
    assert len(set(map(repr, shared.values()))) == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is what they refuse to lack")
def test_an_experiment_that_clients_refuse_ends_in_its_own_line():
    pool = WorkerPool(digits_experiment(device="cuda"), "run", 4, 1, None)
    with flower_identity(), pytest.raises(ConfigError, match="device = 'cuda'"):
        grid = PooledGrid(pool, ClientApp(), 4)
        list(grid.send_and_receive(hellos(grid, [1000])))
    pool.close()


def test_an_experiment_that_clients_refuse_leaves_no_process(tmp_path):
    before = children()
    refused = {**EXPERIMENTS["scaffold"], "class-weights": "x"}
    said = []
    for workers in (1, 2):
        with pytest.raises(ConfigError, match="class-weights") as caught:
            ran(tmp_path, f"run-{workers}", refused, workers=workers)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert children() == before


def test_more_workers_than_clients_are_not_started(tmp_path, monkeypatch):
    asked = []

    class Counted(WorkerPool):
        def __init__(self, experiment, run_name, num_nodes, num_workers, *rest):
            asked.append(num_workers)
            super().__init__(experiment, run_name, num_nodes, 1, *rest)

    monkeypatch.setattr("fedsuite.engines.pool.workers.WorkerPool", Counted)
    ran(tmp_path, "run", EXPERIMENTS["scaffold"], workers=16, num_rounds=1)
    assert asked == [2]
