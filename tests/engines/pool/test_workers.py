"""Worker processes: one process's replies and bits, and what happens when one dies."""

import os
import signal
from collections import deque
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

import fedsuite
from fedsuite.callbacks.progress import Progress
from fedsuite.engines.local import PooledGrid, flower_identity
from fedsuite.engines.pool.workers import WorkerPool
from fedsuite.errors import ConfigError, RunError
from fedsuite.records import HELLO
from fedsuite.results.layout import MODEL, read_manifest
from tests.faults.runs import EXPERIMENTS
from tests.helpers import digits_experiment

COMPARED = (MODEL, "clients.jsonl", "events.jsonl")
"""Files of a run's folder that hold no times."""


def ran(tmp_path: Path, name: str, values, **changes):
    given = {**values, **{key.replace("_", "-"): v for key, v in changes.items()}}
    given |= {"output-dir": str(tmp_path), "run-name": name}
    return fedsuite.run(given, engine="local").path


def held(folder: Path) -> dict[str, bytes]:
    found = {n: (folder / n).read_bytes() for n in COMPARED if (folder / n).exists()}
    for state in sorted((folder / "state").rglob("*.safetensors")):
        found[str(state.relative_to(folder))] = state.read_bytes()
    return found


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return set(map(int, listed.split()))


@pytest.mark.parametrize(
    "name",
    [
        "fedakd",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in sorted(set(EXPERIMENTS) - {"fedakd"})
        ),
    ],
)
def test_workers_end_with_the_bits_of_one_process(tmp_path, name):
    before = children()
    alone = held(ran(tmp_path, "alone", EXPERIMENTS[name]))
    shared = held(ran(tmp_path, "shared", EXPERIMENTS[name], workers=2))
    assert "clients.jsonl" in alone and (MODEL in alone or name == "fedal")
    assert shared == alone
    assert "workers = 2" in (tmp_path / "shared" / "experiment.toml").read_text()
    assert children() == before


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


def test_a_worker_that_is_killed_ends_the_run_and_it_can_go_on(tmp_path, monkeypatch):
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
    monkeypatch.undo()
    assert children() == before
    folder = tmp_path / "killed"
    assert read_manifest(folder)["status"] == "failed"
    fedsuite.resume(folder)
    assert held(folder) == whole


@pytest.fixture(scope="module")
def two_workers():
    made = WorkerPool(digits_experiment(), "run", 4, 2, None)
    yield made
    made.close()


@pytest.fixture
def pool(two_workers):
    with flower_identity():
        yield two_workers


def hellos(grid: PooledGrid, nodes) -> list[Message]:
    return [grid.create_message(RecordDict(), HELLO, node, "") for node in nodes]


def partitions(replies) -> list[int]:
    return [reply.content["hello"]["partition-id"] for reply in replies]


def test_messages_that_nobody_took_disturb_no_later_ones(pool):
    grid = PooledGrid(pool, 4)
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


def test_a_node_that_there_is_not_is_an_error_reply(pool):
    grid = PooledGrid(pool, 4)
    replies = list(grid.send_and_receive(hellos(grid, [1000, 1004])))
    failed = [reply for reply in replies if reply.has_error()]
    assert [reply.error.reason for reply in failed] == ["there is no such node"]
    assert len(replies) == 2


def test_a_message_type_that_no_client_answers_is_an_error_reply(pool):
    grid = PooledGrid(pool, 4)
    (reply,) = grid.send_and_receive(
        [grid.create_message(RecordDict(), "query.nothing", 1000, "")]
    )
    assert reply.has_error() and "nothing" in reply.error.reason


class Scripted:
    """In place of a process: holds messages until it is asked for replies."""

    def __init__(self, sent):
        self.line = object()
        self.messages = deque()
        self.sent = sent

    def send(self, index, message, states, known):
        self.sent.append(index)
        self.messages.append((index, message))

    def take(self, store):
        return self.messages.popleft()

    def stop(self):
        pass


def test_no_message_is_far_ahead_of_the_oldest_without_a_reply(monkeypatch):
    sent, ahead = [], []
    slow, fast = Scripted(sent), Scripted(sent)

    def wait(lines):
        if fast.messages:
            return [fast.line]
        ahead.append(max(sent) - slow.messages[0][0])
        return [slow.line]

    monkeypatch.setattr("fedsuite.engines.pool.workers.wait", wait)
    pool = WorkerPool(digits_experiment(), "run", 4, 0, None)
    pool._workers = [slow, fast]
    with flower_identity():
        messages = [Message(RecordDict(), 1000, HELLO) for _ in range(60)]
        replies = list(pool.answers(messages))
    assert sorted(sent) == list(range(60)) and len(replies) == 60
    # Two workers, four messages each: while the slow one has its first, the other goes on.
    assert ahead[0] == 8 and max(ahead) == 8
    pool.close()


def test_an_experiment_that_clients_refuse_ends_in_its_own_line():
    experiment = digits_experiment(lsr_gamma=0.5, loss="focal")
    pool = WorkerPool(experiment, "run", 4, 1, None)
    with flower_identity(), pytest.raises(ConfigError, match="lsr-gamma"):
        grid = PooledGrid(pool, 4)
        list(grid.send_and_receive(hellos(grid, [1000])))
    pool.close()


def test_more_workers_than_clients_are_not_started(tmp_path, monkeypatch):
    asked = []

    class Counted(WorkerPool):
        def __init__(self, experiment, run_name, num_nodes, num_workers, store):
            asked.append(num_workers)
            super().__init__(experiment, run_name, num_nodes, 1, store)

    monkeypatch.setattr("fedsuite.engines.pool.workers.WorkerPool", Counted)
    ran(tmp_path, "run", EXPERIMENTS["scaffold"], workers=16, num_rounds=1)
    assert asked == [3]
