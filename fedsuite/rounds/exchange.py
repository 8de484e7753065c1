"""One exchange with clients: requests out, checked replies back in client order."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Literal, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.common.constant import ErrorCode

from fedsuite.core.errors import ConfigError, one_line
from fedsuite.messages.array_records import RecordError, num_bytes, to_record
from fedsuite.messages.legacy import ReportedError, from_legacy, to_legacy
from fedsuite.messages.records import (
    ARRAYS,
    CLIENT_IDS,
    CONFIG,
    KEEP_VERSIONS,
    START_VERSIONS,
    AnyRecord,
    Arrays,
    ConfigValue,
    client_record,
    failure_of,
    split_replies,
)
from fedsuite.rounds.kinds import ABSENT, Kind, kind_of_exception
from fedsuite.rounds.membership import Members
from fedsuite.rounds.validation import (
    BadReply,
    ClientReply,
    Expected,
    check_reply,
    spec_of,
    with_advice,
)
from fedsuite.workarounds.prompt_grid import once
from fedsuite.workarounds.sending import REFUSED

Wire = Literal["message", "numpy"]

NO_REPLY = "no reply before the deadline"


@dataclass(frozen=True)
class Exchange:
    """What is sent to clients, and what must come back.

    Parameters
    ----------
    message_type
        Flower message type: ``train``, ``evaluate``, ``query.probe``, ...
    client_ids
        Clients that are asked, sorted.
    shared
        Record name to the arrays that every client gets.
    own
        Client to the records that only this client gets.
    config
        Settings for all clients.
    expected
        What a reply must hold.
    expected_of
        Client to what its reply must hold instead, where models differ.
    coded_bytes
        Client to the bytes that it is sent where what travels is coded.
    """

    message_type: str
    client_ids: Sequence[int]
    shared: Mapping[str, Arrays] = field(default_factory=dict)
    own: Mapping[int, Mapping[str, Arrays]] = field(default_factory=dict)
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    expected: Expected = field(default_factory=Expected)
    expected_of: Mapping[int, Expected] = field(default_factory=dict)
    coded_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether any app could answer: it gets and sends back the model, and no more."""
        expected = self.expected
        more = (
            expected.metrics,
            expected.bounds,
            expected.check,
            self.own,
            self.expected_of,
        )
        if any(more) or not self.shared.keys() | expected.arrays.keys() <= {ARRAYS}:
            return False
        wanted = expected.arrays.get(ARRAYS)
        return wanted is None or wanted == spec_of(self.shared.get(ARRAYS, {}))

    def bytes_to(self, client_id: int) -> int:
        """Return the payload in bytes of one client."""
        shared = sum(num_bytes(arrays) for arrays in self.shared.values())
        own = self.own.get(client_id, {}).values()
        return shared + sum(num_bytes(arrays) for arrays in own)

    def bytes_on_the_line(self, client_id: int) -> int:
        """Return the bytes that really go to one client, coded or not."""
        return self.coded_bytes.get(client_id, self.bytes_to(client_id))

    def bytes_down(self) -> int:
        """Return the payload in bytes, counted per client, whatever node hosts it."""
        shared = sum(num_bytes(arrays) for arrays in self.shared.values())
        own = sum(num_bytes(a) for records in self.own.values() for a in records.values())
        return shared * len(self.client_ids) + own


@dataclass(frozen=True)
class RecordKeys:
    """An app's names of its records; the app has one client per node."""

    arrays: str = ARRAYS
    config: str = CONFIG

    def __post_init__(self) -> None:
        if self.arrays == self.config:
            raise ValueError(
                f"arrayrecord_key and configrecord_key are both {self.arrays!r}: "
                "they name two records"
            )

    def named(self, content: RecordDict) -> RecordDict:
        """Return a request's content with the app's names of records.

        Raises
        ------
        ConfigError
            If the method sends another record of such a name.
        """
        names = {ARRAYS: self.arrays, CONFIG: self.config}
        renamed = RecordDict()
        for name, record in content.items():
            new = names.get(name, name)
            if new in renamed:
                raise ConfigError(
                    f"the method sends a record {new!r} of its own: choose another "
                    "arrayrecord_key or configrecord_key"
                )
            renamed[new] = record
        return renamed

    def understood(self, content: Mapping[str, AnyRecord]) -> Mapping[str, AnyRecord]:
        """Return a reply's content with fedsuite's name of the model's record."""
        if self.arrays not in content or ARRAYS in content:
            return content
        return {ARRAYS if k == self.arrays else k: v for k, v in content.items()}


FEDSUITE_KEYS = RecordKeys()
_NO_VERSIONS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class Rejection:
    """A reply that was not used, as ``events.jsonl`` names it."""

    server_round: int
    client_id: int | None
    kind: Kind
    reason: str


class Unused(NamedTuple):
    """A reply that is not used: its client, None if that is unknown, and what is wrong."""

    client_id: int | None
    bad: BadReply


def _clients_by_node(exchange: Exchange, members: Members) -> dict[int, list[int]]:
    """Return the asked clients of each connected node."""
    by_node: dict[int, list[int]] = {}
    for client_id in exchange.client_ids:
        if client_id in members.nodes:
            by_node.setdefault(members.nodes[client_id], []).append(client_id)
    return by_node


def build_messages(
    exchange: Exchange,
    members: Members,
    wire: Wire,
    group_id: str,
    *,
    start_versions: Mapping[int, str] = _NO_VERSIONS,
    keep_versions: Mapping[int, str] = _NO_VERSIONS,
    shared_record: ArrayRecord | None = None,
    keys: RecordKeys = FEDSUITE_KEYS,
) -> list[Message]:
    """Return one message per node, ordered by the node's first client.

    Parameters
    ----------
    exchange, members
        What to send, and to whom.
    wire
        ``numpy`` translates to Flower's legacy records.
    group_id
        Round and exchange, a mark that a reply must carry.
    start_versions, keep_versions
        Client to the version of its stored state that it starts from, and to those that
        checkpoints need, comma-separated.
    shared_record
        Ready-made record of ``exchange.shared["arrays"]``, to save packing it again.
    keys
        The app's names of records.
    """
    shared = {name: to_record(arrays) for name, arrays in exchange.shared.items()}
    if shared_record is not None:
        shared[ARRAYS] = shared_record
    # Copied for each node: Flower checks all that is put into a record, but no copy.
    same_content = RecordDict(dict(shared))
    same_config = ConfigRecord(dict(exchange.config))
    versions = {START_VERSIONS: start_versions, KEEP_VERSIONS: keep_versions}
    messages = []
    for node_id, client_ids in _clients_by_node(exchange, members).items():
        content, config = same_content.copy(), same_config.copy()
        if members.hosted:
            config[CLIENT_IDS] = client_ids
        for key, known in versions.items():
            if any(client_id in known for client_id in client_ids):
                config[key] = [known.get(client_id, "") for client_id in client_ids]
        for client_id in client_ids:
            for name, arrays in exchange.own.get(client_id, {}).items():
                key = client_record(client_id, name) if members.hosted else name
                content[key] = to_record(arrays)
        content[CONFIG] = config
        if wire == "numpy":
            content = to_legacy(content, exchange.message_type)
        elif keys != FEDSUITE_KEYS:
            content = keys.named(content)
        messages.append(Message(content, node_id, exchange.message_type, group_id=group_id))
    return messages


# What Flower says of an error is text: a class and words, or a traceback from Ray.
_CLASS = re.compile(r"(?:<class '(?:[^']*\.)?)?(\w+)(?:'>:<'|: )")
_NO_HANDLER = re.compile(r"ValueError(?:'>:<'|: )No \w+ function registered with name")
_LEGACY_APP = re.compile(r"KeyError(?:'>:<'|: )\W*(?:fit|evaluate)ins\.")


def kind_of_error(error: Error, wire: Wire) -> tuple[Kind, str]:
    """Return the kind of a node's error, and the class of what the app raised."""
    if error.code == REFUSED:
        return Kind.NOT_SENT, ""
    if error.code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
        return Kind.NODE_FAILED, ""
    reason = str(error.reason)
    if _NO_HANDLER.search(reason):
        return Kind.NO_HANDLER, ""
    if wire == "message" and _LEGACY_APP.search(reason):
        return Kind.OTHER_WIRE, ""
    raised = _CLASS.match(reason)
    name = raised[1] if raised else ""
    return kind_of_exception(name), name


class ReplyReader:
    """Reads the replies to one exchange, in whatever order they come.

    The reader yields each client at most once, in client-id order, as soon as all clients
    before it are settled. A grid that answers in order so keeps one reply in memory.

    Parameters
    ----------
    exchange, members, wire, group_id, keys
        As for :func:`build_messages`.

    Attributes
    ----------
    no_reply
        What is said of a client whose reply was not among those that were read.
    """

    no_reply = NO_REPLY

    def __init__(
        self,
        exchange: Exchange,
        members: Members,
        wire: Wire,
        group_id: str,
        keys: RecordKeys = FEDSUITE_KEYS,
    ) -> None:
        self.exchange = exchange
        self.group_id = group_id
        self._wire = wire
        self._members = members
        self._keys = keys
        self._waiting = list(exchange.client_ids)
        self._failures: list[BadReply] = []
        self._settled: dict[int, ClientReply | None] = {}
        self._unused: list[Unused] = []
        self._clients_of = _clients_by_node(exchange, members)
        self._sent: dict[int, Metadata] = {}
        self.left_out = False
        self.bytes_up = 0
        self.num_good = 0
        self.any_stored = False
        self.unfollowed: dict[int, Mapping[str, ConfigValue | None]] = {}
        for client_id in exchange.client_ids:
            if client_id not in members.nodes:
                away = BadReply(Kind.NOT_CONNECTED, "its node is not connected")
                self._settle(client_id, away)

    def clients_of(self, node_id: int) -> Sequence[int]:
        """Return the asked clients of a node."""
        return self._clients_of.get(node_id, [])

    def note(self, messages: Iterable[Message]) -> None:
        """Hear of the messages of the exchange, which someone else may send or not."""
        self._sent = {m.metadata.dst_node_id: m.metadata for m in messages}

    def only(self, messages: Iterable[Message]) -> list[Message]:
        """Return what is sent of the exchange in client order; the rest is not asked.

        Messages that are none of the exchange's come last.
        """
        going, nodes = list(messages), list(self._sent)
        places = {node_id: place for place, node_id in enumerate(nodes)}
        reached = {message.metadata.dst_node_id for message in going}
        self._leave_out([node_id for node_id in nodes if node_id not in reached])
        # What is sent is known: numbers need not say it.
        self._sent = {}
        return sorted(going, key=lambda m: places.get(m.metadata.dst_node_id, len(nodes)))

    def _leave_out(self, node_ids: Iterable[int]) -> None:
        """Forget the clients of nodes that are sent nothing: they are not asked."""
        gone = {k for node_id in node_ids for k in self._clients_of.pop(node_id, ())}
        if gone:
            self.left_out = True
            asked = [k for k in self.exchange.client_ids if k not in gone]
            self.exchange = replace(self.exchange, client_ids=asked)
            self._waiting = [k for k in self._waiting if k not in gone]

    def part(self, node_ids: Iterable[int]) -> "ReplyReader":
        """Return a reader for some nodes alone, of a round that does not wait for all."""
        asked = sorted(k for node_id in node_ids for k in self.clients_of(node_id))
        return ReplyReader(
            replace(self.exchange, client_ids=asked),
            self._members,
            self._wire,
            self.group_id,
            self._keys,
        )

    def hear(self, part: "ReplyReader") -> None:
        """Take what came to a part as come to the whole."""
        self._failures += part._failures
        self.num_good += part.num_good
        self.any_stored |= part.any_stored

    def read(self, replies: Iterable[Message]) -> Iterator["ClientReply | Unused"]:
        """Return the good replies in client-id order, and the unused ones as they come."""
        came = chain.from_iterable(map(self._take, once(replies)))
        return chain(self._ready(), came, self._lacking())

    def _lacking(self) -> "Iterator[ClientReply | Unused]":
        """Settle who has not answered; yield what that leaves."""
        self._leave_out(self._never_sent())
        for client_id in self._waiting:
            if client_id not in self._settled:
                self._settle(client_id, BadReply(Kind.LATE, self.no_reply))
        yield from self._ready()

    def _never_sent(self) -> list[int]:
        """Return the nodes whose messages an app's own loop did not send.

        A Grid numbers the messages that it sends; of one that numbers none, all were sent.
        """
        numbered = [n for n, metadata in self._sent.items() if metadata.message_id]
        return list(self._sent.keys() - numbered) if numbered else []

    def unused(self) -> Iterator["Unused"]:
        """Yield the unused replies that have not been yielded yet."""
        while self._unused:
            yield self._unused.pop(0)

    def _ready(self) -> "Iterator[ClientReply | Unused]":
        yield from self.unused()
        while self._waiting and self._waiting[0] in self._settled:
            client_id = self._waiting.pop(0)
            reply = self._settled[client_id]
            self._settled[client_id] = None
            if reply is not None:
                self.num_good += 1
                self.any_stored |= reply.stored_state
                if reply.unfollowed:
                    self.unfollowed[client_id] = reply.unfollowed
                yield reply

    def common_failure(self) -> BadReply | None:
        """Return the failure that all who answered share.

        None if some answer was good, if nobody answered, or if the failures differ.
        """
        came = self._failed
        alike = len({(failure.kind, failure.what) for failure in came}) == 1
        return came[0] if alike and not self.num_good else None

    @property
    def num_failed(self) -> int:
        """Number of clients that answered, and whose answers cannot be used."""
        return len(self._failed)

    @property
    def _failed(self) -> list[BadReply]:
        return [failure for failure in self._failures if failure.kind not in ABSENT]

    def _reject(self, client_id: int | None, bad: BadReply) -> None:
        self._unused.append(Unused(client_id, bad))

    def _settle(self, client_id: int, outcome: ClientReply | BadReply) -> None:
        if isinstance(outcome, BadReply):
            self._failures.append(outcome)
            self._reject(client_id, outcome)
            self._settled[client_id] = None
        else:
            self._settled[client_id] = outcome

    def _take(self, message: Message) -> "Iterator[ClientReply | Unused]":
        """Settle the clients of a message; yield what each leaves, still in the cache."""
        node_id = message.metadata.src_node_id
        client_ids = self.clients_of(node_id)
        group_id = message.metadata.group_id
        # An error made by the SuperLink may lack the group, and does not name the node
        # that it is about.
        if group_id != self.group_id and (group_id or not message.has_error()):
            reason = f"node {node_id}: a reply to another round or exchange"
            self._reject(None, BadReply(Kind.STALE, reason))
            return
        if message.has_error():
            failure = self._node_failure(message.error)
            if not client_ids:
                self._reject(None, failure)
            for client_id in client_ids:
                if client_id in self._settled:
                    self._reject(client_id, failure)
                else:
                    self._settle(client_id, failure)
            yield from self._ready()
            return
        if not client_ids:
            reason = f"node {node_id}: a reply that nobody asked for"
            self._reject(None, BadReply(Kind.UNASKED, reason))
            return
        for client_id, outcome in self._entries(message.content, client_ids):
            if client_id in self._settled:
                second = BadReply(Kind.DUPLICATE, "a second reply to one request")
                self._reject(client_id, second)
            else:
                self._settle(client_id, outcome)
            yield from self._ready()

    def _node_failure(self, error: Error) -> BadReply:
        """Return a node's error, which may mean that the node has another app."""
        kind, raised = kind_of_error(error, self._wire)
        reason = f"node failed: {one_line(error.reason)}"
        if kind is Kind.NOT_SENT:
            reason = str(error.reason)
        elif kind is Kind.NO_HANDLER:
            reason = f"no handler for {self.exchange.message_type}"
            reason = with_advice(reason, self.exchange.expected.advice)
        elif kind is Kind.OTHER_WIRE:
            reason += ": give wire='numpy' for legacy NumPyClients"
        return BadReply(kind, reason, raised)

    def _entries(
        self, content: RecordDict, client_ids: Sequence[int]
    ) -> Iterator[tuple[int, ClientReply | BadReply]]:
        if not self._members.hosted:
            yield client_ids[0], self._check(client_ids[0], content)
            return
        entries = split_replies(content, client_ids)
        for client_id in client_ids:
            if client_id not in entries:
                reason = "the node's reply has no entry for it"
                yield client_id, BadReply(Kind.INCOMPLETE, reason)
            else:
                yield client_id, self._check(client_id, entries[client_id])

    def _check(
        self, client_id: int, content: Mapping[str, AnyRecord]
    ) -> ClientReply | BadReply:
        try:
            expected = self.exchange.expected_of.get(client_id, self.exchange.expected)
            if self._wire == "numpy":
                names = list(spec_of(self.exchange.shared.get(ARRAYS, {})))
                content = self._from_legacy(content, names)
            if failure := failure_of(content, hosted=self._members.hosted):
                reason, raised = failure
                kind = kind_of_exception(raised)
                return BadReply(kind, f"client failed: {one_line(reason)}", raised)
            named = self._keys.understood(content)
            reply = check_reply(client_id, named, expected)
            if named is not content:
                reply = replace(reply, content=content)
        except BadReply as bad:
            return bad
        except ReportedError as error:
            return BadReply(Kind.CLIENT_FAILED, str(error))
        except RecordError as error:
            return BadReply(Kind.WRONG_ARRAYS, str(error))
        self.bytes_up += reply.num_bytes
        return reply

    def _from_legacy(
        self, content: Mapping[str, AnyRecord], names: Sequence[str]
    ) -> RecordDict:
        try:
            return from_legacy(content, self.exchange.message_type, names)
        except ReportedError:
            raise
        except RecordError as error:
            reason = with_advice(str(error), self.exchange.expected.advice)
            raise BadReply(Kind.MISSING, reason, "a legacy result") from None
