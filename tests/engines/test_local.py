"""The local engine: Flower's Grid in one process, for any ClientApp."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedsuite.core.errors import RunError
from fedsuite.engines.local import LocalGrid, run_local
from fedsuite.results.layout import read_manifest
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import bits, digits_experiment, to_arrays


def counting_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        counter = context.state.setdefault("counter", ConfigRecord({"calls": 0}))
        counter["calls"] += 1
        partition = context.node_config["partition-id"]
        if message.content.get("fail") == ConfigRecord({"partition": partition}):
            raise ZeroDivisionError("by zero")
        facts = {"partition": partition, "calls": counter["calls"], **context.run_config}
        return Message(RecordDict({"facts": ConfigRecord(facts)}), reply_to=message)

    return app


def ask(grid: LocalGrid, nodes: list[int], **records: ConfigRecord) -> list[Message]:
    content = RecordDict(dict(records))
    return [grid.create_message(content, "train", node, "1.1") for node in nodes]


def facts(message: Message) -> dict[str, Any]:
    return dict(message.content["facts"])


def test_each_node_has_a_partition_and_a_state_of_its_own() -> None:
    with flower_identity():
        grid = LocalGrid(counting_app(), 3, {"lr": 0.5})
        assert grid.get_node_ids() == [1000, 1001, 1002]
        assert [node.node_id for node in grid.get_nodes()] == [1000, 1001, 1002]
        list(grid.send_and_receive(ask(grid, [1001])))
        replies = list(grid.send_and_receive(ask(grid, [1000, 1001])))
    assert [facts(reply) for reply in replies] == [
        {"partition": 0, "calls": 1, "lr": 0.5},
        {"partition": 1, "calls": 2, "lr": 0.5},
    ]
    assert [reply.metadata.src_node_id for reply in replies] == [1000, 1001]
    assert {reply.metadata.group_id for reply in replies} == {"1.1"}


def test_failures_are_error_replies() -> None:
    with flower_identity():
        grid = LocalGrid(counting_app(), 2)
        fail = ConfigRecord({"partition": 0})
        failed, fine, unknown = grid.send_and_receive(ask(grid, [1000, 1001, 7], fail=fail))
    assert failed.error.reason == "ZeroDivisionError: by zero"
    assert failed.metadata.src_node_id == 1000
    assert fine.has_content()
    assert unknown.error.reason == "there is no such node"


def test_a_client_works_when_its_reply_is_taken() -> None:
    with flower_identity():
        grid = LocalGrid(counting_app(), 1)
        unread = grid.send_and_receive(ask(grid, [1000]))
        [read] = grid.send_and_receive(ask(grid, [1000]))
        assert facts(read)["calls"] == 1
        assert facts(next(iter(unread)))["calls"] == 2


def test_push_and_pull() -> None:
    with flower_identity():
        grid = LocalGrid(counting_app(), 2)
        pushed = list(grid.push_messages(ask(grid, [1000, 1001])))
        assert len(set(pushed)) == 2
        [second] = grid.pull_messages(pushed[1:])
        assert facts(second)["partition"] == 1
        assert second.metadata.reply_to_message_id == pushed[1]
        [first] = grid.pull_messages(pushed)
        assert facts(first)["partition"] == 0
        assert list(grid.pull_messages(pushed)) == []
        # Flower 1.43 takes all without ids; an empty list is none.
        grid.push_messages(ask(grid, [1000, 1001]))
        assert [len(grid.pull_messages(*ids)) for ids in (([],), (), ())] == [0, 2, 0]


def test_identity_is_lent_and_taken_back() -> None:
    names = ("run_id", "node_id", "task_id")

    def identity() -> list[Any]:
        return [getattr(TaskIdentity, f"_{name}") for name in names]

    before = identity()
    with pytest.raises(KeyError), flower_identity():
        assert None not in identity()
        raise KeyError
    assert identity() == before


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_bits_do_not_depend_on_the_number_of_nodes(method: str, tmp_path: Path) -> None:
    """Four clients on one, two, three and four nodes."""
    outcomes = set()
    for nodes in (1, 2, 3, 0):
        folder = tmp_path / str(nodes)
        experiment = digits_experiment(method=method, num_rounds=2)
        result = run_local(experiment, folder, num_supernodes=nodes).result
        lines = (folder / "clients.jsonl").read_text()
        outcomes.add((str(bits(to_arrays(result.arrays))), lines))
    assert len(outcomes) == 1


def test_client_states_lie_where_the_experiment_says(tmp_path: Path) -> None:
    state = tmp_path / "elsewhere"
    run_local(
        digits_experiment(method="standalone", num_rounds=1, state_dir=str(state)),
        tmp_path / "runs" / "name",
    )
    assert len(list((state / "name").glob("*/1.1.safetensors"))) == 4
    assert not (tmp_path / "runs" / "name" / "state").exists()


def test_run_that_fails_leaves_its_reason_in_the_manifest(tmp_path: Path) -> None:
    experiment = digits_experiment(model="mlp", learning_rate=1e30, max_failed_rounds=2)
    with pytest.raises(RunError, match=r"2 rounds in a row .* the training loss is nan"):
        run_local(experiment, tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    assert manifest["status"] == "failed"
    assert "the training loss is nan" in manifest["error"]
    assert len((tmp_path / "run" / "events.jsonl").read_text().splitlines()) >= 4


def test_numbers_of_pushed_messages_stand_in_their_order_whatever_that_of_replies() -> None:
    class Backwards(LocalGrid):
        def _answers_of_nodes(self, messages: Any) -> Any:
            return reversed([self._answer_here(message) for message in messages])

    with flower_identity():
        grid = Backwards(counting_app(), 3)
        pushed = grid.push_messages(ask(grid, [1002, 1000, 1001]))
        replies = grid.pull_messages(pushed)
    assert [reply.metadata.src_node_id for reply in replies] == [1002, 1000, 1001]


def test_progress_counts_clients_and_not_the_messages_that_ask_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ten clients on one node are asked by one message: 1 of 1 would be no news."""
    told = []

    def noting(items: Any, total: int, what: str, size: Any) -> Any:
        for item in items:
            told.append((size(item), total, what))
            yield item

    monkeypatch.setattr("fedsuite.engines.local.counted", noting)
    experiment = digits_experiment(
        num_rounds=1, num_clients=10, **{"output-dir": str(tmp_path)}
    )
    run_local(experiment, tmp_path / "run", num_supernodes=1)
    assert (10, 10, "replies") in told
