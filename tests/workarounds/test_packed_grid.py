"""The Grid that sends the arrays of a record as one."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.superlink.grid import InMemoryGrid

from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import LazyArray, to_arrays, to_record
from fedsuite.messages.records import failure_of
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.packed import LAYOUT, PACKED, packing_mod
from fedsuite.workarounds.packed_grid import PackedGrid, grid_for
from fedsuite.workarounds.prompt_grid import PromptGrid


class WireGrid(LocalGrid):
    """A Grid over which arrays cross as bytes; it notes what it carries."""

    def __init__(self, app: ClientApp, nodes: int = 2) -> None:
        super().__init__(app, nodes)
        self.carried: list[list[str]] = []
        self.bytes_made: list[bytes] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return super().push_messages([self._carry(message) for message in messages])

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._carry(reply) for reply in super().pull_messages(message_ids)]

    def _carry(self, message: Message) -> Message:
        if not message.has_content():
            return message
        for record in message.content.values():
            if isinstance(record, ArrayRecord):
                self.carried.append(list(record))
                for name, array in record.items():
                    self.bytes_made.append(array.data)
                    record[name] = Array(
                        dtype=array.dtype,
                        shape=tuple(array.shape),
                        stype=array.stype,
                        data=array.data,
                    )
        return message


def adding_app(mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        record = message.content["arrays"]
        assert isinstance(record, ArrayRecord)
        added = message.metadata.dst_node_id - 999
        arrays = {k: np.asarray(a + added) for k, a in to_arrays(record).items()}
        return Message(RecordDict({"arrays": to_record(arrays)}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        raise ValueError("no answer")

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        layout = ConfigRecord({"names": ["w"], "dtypes": ["<f4"], "shapes": ["9"]})
        record = ArrayRecord({PACKED: LazyArray(np.zeros(4, np.uint8))})
        content = RecordDict({"arrays": record, "arrays" + LAYOUT: layout})
        return Message(content, reply_to=message)

    return app


def messages(kind: str = "train") -> list[Message]:
    record = to_record({"w": np.ones(3, np.float32), "steps": np.array(4)})
    return [
        Message(RecordDict({"arrays": record}), node, kind, ttl=50.0, group_id="1:0")
        for node in (1000, 1001)
    ]


def test_a_client_app_without_the_mod_sees_what_was_sent() -> None:
    wire = WireGrid(adding_app([]))
    with flower_identity():
        replies = list(PackedGrid(wire).send_and_receive(messages()))
    assert wire.carried[:2] == [[PACKED], [PACKED]]
    assert all(list(reply.content["arrays"]) == [PACKED] for reply in replies)


def test_what_is_sent_is_packed_and_replies_read_as_ever() -> None:
    wire = WireGrid(adding_app([packing_mod]))
    with flower_identity():
        sent = messages()
        replies = list(PackedGrid(wire).send_and_receive(sent))
    assert wire.carried == [[PACKED]] * 4
    # Both messages share the record, which is put together once.
    assert wire.bytes_made[0] is wire.bytes_made[1]
    for reply in replies:
        node = reply.metadata.src_node_id
        assert reply.metadata.group_id == "1:0"
        found = to_arrays(reply.content["arrays"])  # type: ignore[arg-type]
        assert found["w"].tolist() == [1.0 + node - 999] * 3
        assert found["steps"] == 4 + node - 999
    # The strategy's own messages are as they were.
    assert all(list(message.content["arrays"]) == ["w", "steps"] for message in sent)


def test_messages_keep_what_they_are() -> None:
    seen: list[Message] = []

    class Noting(WireGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            seen.extend(sent := list(messages))
            return super().push_messages(sent)

    with flower_identity():
        list(PackedGrid(Noting(adding_app([packing_mod]))).send_and_receive(messages()))
    facts = [
        (
            m.metadata.dst_node_id,
            m.metadata.message_type,
            m.metadata.group_id,
            m.metadata.ttl,
        )
        for m in seen
    ]
    assert facts == [(1000, "train", "1:0", 50.0), (1001, "train", "1:0", 50.0)]


def test_errors_pass_and_damage_becomes_the_clients_error() -> None:
    with flower_identity():
        grid = PackedGrid(WireGrid(adding_app([packing_mod])))
        failed = list(grid.send_and_receive(messages("query")))
        damaged = list(grid.send_and_receive(messages("evaluate")))
    assert all(reply.has_error() for reply in failed)
    for reply in damaged:
        assert "36 bytes" in failure_of(reply.content, hosted=False)[0]


def test_in_one_memory_nothing_is_packed() -> None:
    between_machines = grid_for(WireGrid(adding_app([])))
    simulated = grid_for(object.__new__(InMemoryGrid))
    assert type(between_machines) is PackedGrid
    assert type(simulated) is PromptGrid
    # A look is no request there, and Flower's simulation replies at once.
    assert simulated.shortest_pause < between_machines.shortest_pause
