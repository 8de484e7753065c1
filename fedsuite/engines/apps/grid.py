"""Flower's Grid for an app in this process."""

import copy
import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from flwr.app import ConfigRecord, Error, Message
from flwr.common.constant import ErrorCode
from typing_extensions import override

from fedsuite.core.rng import OwnStreams, States
from fedsuite.engines.apps.nodes import Answer, Federation, Nodes, own_copy
from fedsuite.engines.grid import GridHere
from fedsuite.messages.records import EVALUATE, TRAIN
from fedsuite.training.fault_plan import FaultPlan
from fedsuite.workarounds.identity import set_message_id

logger = logging.getLogger("flwr")

_ROUND_NAMES = ("server-round", "server_round", "current-round", "current_round", "round")

_ASKED_OFTEN = 3
_PATIENCE = 5.0
"""Seconds, and times, that an app asks for nodes before it hears that no more will come."""


class Sent(NamedTuple):
    """A message on its way."""

    message: Message
    partition: int
    server_round: int

    @property
    def key(self) -> str:
        """The id by which its reply is known."""
        return self.message.metadata.message_id

    @property
    def category(self) -> str:
        """``train``, ``evaluate``, ``query``, or what the app made up."""
        return self.message.metadata.message_type.partition(".")[0]


class Answering(Protocol):
    """What answers messages: the nodes of this process, or other processes."""

    def answers(self, messages: Sequence[Sent]) -> Iterator[tuple[Sent, Answer]]:
        """Yield each message with its node's answer, in any order."""


class NodesHere:
    """The nodes of this process, one after the other.

    Parameters
    ----------
    nodes
        The nodes.
    before
        The states of the global generators before the app was imported.
    """

    def __init__(self, nodes: Nodes, before: States) -> None:
        self._nodes = nodes
        # Legacy strategies send from several threads.
        self._lock = threading.Lock()
        # In Flower the server is another process, which draws from its own.
        self._streams = OwnStreams(before)

    def answers(self, messages: Sequence[Sent]) -> Iterator[tuple[Sent, Answer]]:
        """Yield each message with its node's answer."""
        with self._lock, self._streams:
            answers = [self._answer(sent) for sent in messages]
        yield from zip(messages, answers, strict=True)

    def _answer(self, sent: Sent) -> Answer:
        message = copy.copy(sent.message)
        if message.has_content():
            message.content = own_copy(message.content)
        answer = self._nodes.answer(message, sent.partition)
        if answer.reply.has_content():
            answer.reply.content = own_copy(answer.reply.content)
        return answer


class Watcher(Protocol):
    """Who is told of each exchange, for a report."""

    def exchanged(self, exchanges: Sequence[tuple[Sent, Message, float]]) -> None:
        """Take in messages, the replies to them, and the seconds that these took."""


class AppGrid(GridHere):
    """A Grid whose nodes live in this process, or in worker processes.

    The grid works with any app, legacy or not. Its replies are a list, in the order of the
    messages.

    Parameters
    ----------
    federation
        The nodes.
    answering
        What answers for them.
    faults
        Drop-outs and stragglers.
    watcher
        Who is told of each exchange; None for nobody.
    """

    def __init__(
        self,
        federation: Federation,
        answering: Answering,
        faults: FaultPlan | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        super().__init__(federation.run_id, federation.node_ids)
        self._partitions = {node: k for k, node in enumerate(federation.node_ids)}
        self._answering = answering
        self._faults = faults or FaultPlan()
        self._watcher = watcher
        self._message_ids = itertools.count(1)
        self._server_round = 0
        self._waiting: list[float] | None = []

    @override
    def get_node_ids(self) -> list[int]:
        if self._waiting is not None:
            self._waiting.append(time.monotonic())
            self._tell_who_waits(self._waiting)
        return super().get_node_ids()

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return list(self._answers(list(messages), timeout))

    # --------------------------------------------------------------------------- machinery

    @override
    def _answers(
        self, messages: Sequence[Message], timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the replies that came in time, in the order of the messages."""
        self._waiting = None
        replies: dict[str, tuple[Message, float]] = {}
        sent_to_nodes, asked = [], []
        for message in messages:
            set_message_id(message, f"message-{next(self._message_ids)}")
            sent = self._sent(message)
            if sent is None:
                replies[message.metadata.message_id] = (
                    _no_reply(message, "no such node"),
                    0.0,
                )
                continue
            sent_to_nodes.append(sent)
            if self._fate(sent) == "drop-out":
                replies[sent.key] = _no_reply(message, "planned drop-out"), 0.0
            else:
                asked.append(sent)
        for sent, answer in self._answering.answers(asked):
            replies[sent.key] = self._late(sent, answer.reply), answer.seconds
        if self._watcher is not None:
            self._watcher.exchanged([(sent, *replies[sent.key]) for sent in sent_to_nodes])
        for message in messages:
            reply, seconds = replies[message.metadata.message_id]
            if timeout is not None and seconds > timeout:
                logger.warning(
                    "no reply of node %d to %s within %g s: it took %.1f s",
                    self._partitions[message.metadata.dst_node_id],
                    message.metadata.message_type,
                    timeout,
                    seconds,
                )
                continue
            set_message_id(reply, f"reply-to-{message.metadata.message_id}")
            yield reply

    def _tell_who_waits(self, asked: Sequence[float]) -> None:
        """Say, before the first message and once, that there will be no more nodes."""
        if len(asked) < _ASKED_OFTEN or asked[-1] - asked[0] < _PATIENCE:
            return
        self._waiting = None
        logger.warning(
            "this simulation has %d nodes, and an app that waits for more waits for ever: "
            "give --num-supernodes, or lower the app's least number of nodes",
            len(self._partitions),
        )

    def _sent(self, message: Message) -> Sent | None:
        """Return a message with its partition and round; None if it has no node."""
        self._server_round = _round_of(message) or self._server_round
        partition = self._partitions.get(message.metadata.dst_node_id)
        return None if partition is None else Sent(message, partition, self._server_round)

    def _late(self, sent: Sent, reply: Message) -> Message:
        """Return the reply, or an error in place of a straggler's."""
        if sent.category != TRAIN or self._fate(sent) != "straggler":
            return reply
        reason = "planned straggler: its reply came after the deadline"
        late = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason)
        return Message(late, reply_to=sent.message)

    def _fate(self, sent: Sent) -> str:
        # Evaluation is a measurement, and always answered.
        if not self._faults or sent.category == EVALUATE:
            return "fine"
        return self._faults.fate(sent.server_round, sent.partition)


def _no_reply(message: Message, reason: str) -> Message:
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)


def _round_of(message: Message) -> int:
    """Return the round that a message names in a config, or as its group; 0 for none."""
    if message.has_content():
        for record in message.content.values():
            if isinstance(record, ConfigRecord):
                for name in _ROUND_NAMES:
                    value = record.get(name)
                    if isinstance(value, int) and value > 0:
                        return value
    group = message.metadata.group_id
    return int(group) if group.isdecimal() and len(group) < 10 else 0
