"""The network and its nodes: Flower's Grid, whose messages meet the world's faults.

Only ``push_messages``, ``pull_messages`` and ``get_node_ids`` are simulated. fedsuite's own
``PromptGrid`` stands on them, so its polling and its deadlines are those of real runs.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsuite.engines.grid import node_context
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import ARRAYS, CLIENT_IDS, CONFIG, Reply, split_replies
from fedsuite.messages.secure_sums import ACTIVE, GONE, RECORD
from fedsuite.training.app import reply_of_error
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import set_message_id
from fedsuite.workarounds.prompt_grid import PromptGrid
from tests.disasters.disk import Disk
from tests.disasters.world import HELLO_KINDS, MESSAGE_KINDS, STAGES, TIMEOUT_S, World

HELLO = "query.hello"
Exchange = tuple[str, str]
"""Type of its messages, and its group."""


SESSION = "secure-session"


class OfSum(NamedTuple):
    """What left a client for a secure sum, whether or not it came to the server.

    Parameters
    ----------
    session
        The run that Flower knows, and the number of the sum in it.
    kind, group
        Type of the message, and its group.
    client_id
        Whose it is.
    arrays
        What it sent.
    more
        Other arrays that went with it, and metrics that say more than 1.
    lists
        To open a sum: whose vectors are in it, and who is gone.
    """

    session: tuple[Any, ...]
    kind: str
    group: str
    client_id: int
    arrays: Mapping[str, Any]
    more: tuple[str, ...]
    lists: tuple[tuple[int, ...], tuple[int, ...]]


class Wire:
    """What the network carried, as an eavesdropper notes it: all that the checker knows.

    But for ``trained``, by group and client: what goes under masks, as clients know it.
    """

    def __init__(self) -> None:
        self.trained: dict[tuple[str, int], Reply] = {}
        self.of_sums: list[OfSum] = []
        self.tampered: set[tuple[str, int]] = set()
        self.asked: dict[Exchange, set[int]] = {}
        self.got: dict[Exchange, dict[int, list[Any]]] = {}
        self.sent: dict[tuple[str, int], dict[str, Any]] = {}
        self.sent_at: dict[Exchange, float] = {}
        self.refused: dict[Exchange, set[int]] = {}
        self.models: list[tuple[int, bytes]] = []
        self.trained_at = 0.0

    def note_request(self, message: Message, now: float) -> None:
        """Note a message to a node."""
        kind, group = message.metadata.message_type, message.metadata.group_id
        key = kind, group
        config = message.content[CONFIG]
        self.asked.setdefault(key, set()).update(config.get(CLIENT_IDS, []))
        self.got.setdefault(key, {})
        self.sent_at[key] = now
        if kind == "evaluate":
            self.trained_at = now
        names = (ARRAYS, "control")
        shared = {n: to_arrays(r) for n, r in message.content.items() if n in names}
        server_round = round_of(group)
        self.sent[kind, server_round] = shared
        if kind == "train" and ARRAYS in shared:
            model = b"".join(array.tobytes() for array in shared[ARRAYS].values())
            if (server_round, model) not in self.models:
                self.models.append((server_round, model))

    def note_refusal(self, message: Message) -> None:
        """Note a message that Flower did not take."""
        key = message.metadata.message_type, message.metadata.group_id
        client_ids = message.content[CONFIG].get(CLIENT_IDS, [])
        self.refused.setdefault(key, set()).update(client_ids)

    def note_reply(self, reply: Message) -> None:
        """Note a reply that was handed to the server."""
        key = reply.metadata.message_type, reply.metadata.group_id
        if not reply.has_content() or key not in self.asked:
            return
        for client_id, entry in split_replies(reply.content, self.asked[key]).items():
            lacks = key[0] in STAGES and not {ARRAYS, RECORD} & entry.keys()
            if "error" in entry or lacks:
                continue
            names = (ARRAYS, "control-change")
            arrays = {n: to_arrays(r) for n, r in entry.items() if n in names}
            metrics = dict(entry["metrics"].items())
            self.got[key].setdefault(client_id, []).append((arrays, metrics))

    def note_sum(self, run: tuple[Any, ...], message: Message, reply: Message) -> None:
        """Note what leaves a node for a secure sum of one of Flower's runs."""
        kind, group = message.metadata.message_type, message.metadata.group_id
        config = message.content.get(CONFIG, {})
        if SESSION not in config or kind not in STAGES or not reply.has_content():
            return
        lists = tuple(tuple(config.get(name, ())) for name in (ACTIVE, GONE))
        asked = config.get(CLIENT_IDS, [])
        for client_id, entry in split_replies(reply.content, asked).items():
            if "error" in entry:
                continue
            arrays = to_arrays(entry[RECORD]) if RECORD in entry else {}
            more = [n for n, r in entry.items() if isinstance(r, ArrayRecord)]
            metrics = entry["metrics"].items() if "metrics" in entry else ()
            more += [name for name, value in metrics if value != 1]
            more = [name for name in more if name != RECORD]
            session = (*run, config[SESSION])
            said = OfSum(session, kind, group, client_id, arrays, tuple(more), lists)
            self.of_sums.append(said)

    def forget_after(self, last_round: int) -> None:
        """Forget the rounds that a server which goes on does again."""
        for known in (self.asked, self.got, self.sent_at, self.sent, self.refused):
            for key in [k for k in known if round_of(str(k[1])) > last_round]:
                del known[key]
        for key in [k for k in self.trained if round_of(k[0]) > last_round]:
            del self.trained[key]


def round_of(group: str) -> int:
    """Return the round of a group of messages."""
    return int(group.split(".")[0])


class Nodes:
    """The nodes, their clients and their memories."""

    def __init__(self, world: World, states: Path) -> None:
        self.world = world
        self.states = states
        self.pushed = 0
        self.contexts: dict[tuple[Any, ...], RecordDict] = defaultdict(RecordDict)
        self.free: dict[tuple[int, int], float] = {}
        self.hellos: dict[int, int] = defaultdict(int)
        self.last_reply: dict[int, Message] = {}


class WorldGrid(LocalGrid):
    """A Grid of one server in the world.

    Parameters
    ----------
    nodes, wire, disk
        Of the world.
    client_app
        Answers for all nodes.
    store
        Where clients live in the server's process, their memory.
    """

    def __init__(
        self,
        nodes: Nodes,
        wire: Wire,
        disk: Disk,
        client_app: ClientApp,
        store: MemoryStore | None,
    ) -> None:
        super().__init__(client_app, nodes.world.plan.num_nodes, {}, store)
        self.nodes, self.wire, self.disk, self.world = nodes, wire, disk, nodes.world
        self._prompt = PromptGrid(self)
        self._link, self._of_second = self.world.link, self.world.in_second_server

    def _reach(self) -> None:
        """Wait for the SuperLink, as Flower does; one that lost its database refuses."""
        self.world.run_until(max(self.world.now, self.world.link_back_at))
        if self._link != self.world.link:
            request = httpx.Request("POST", "http://127.0.0.1:9091/runtime/messages")
            httpx.Response(401, request=request).raise_for_status()

    def get_node_ids(self) -> list[int]:
        self._reach()
        return sorted(node for node in self.world.nodes.values() if node)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Any:
        return self._prompt.send_and_receive(messages, timeout=timeout)

    # ------------------------------------------------------------------------------- send

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._reach()
        pushed = list(messages)
        first = pushed[0].metadata if pushed else None
        if first is not None and first.message_type != HELLO:
            # As Flower's client does where a message is too large.
            place = f"{first.message_type} {exchange_of(first.group_id)}"
            if self.world.message_fault(f"{place} push", {"push-fails"}):
                for message in pushed:
                    self.wire.note_request(message, self.world.now)
                    self.wire.note_refusal(message)
                return []
        return [self._push(message) for message in pushed]

    def _push(self, message: Message) -> str:
        world, nodes = self.world, self.nodes
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        self.disk.moment(f"send:{kind}")
        self._reach()
        here = [p for p, n in world.nodes.items() if n == node]
        partition = here[0] if here else -1
        if kind == HELLO:
            nodes.hellos[partition] += 1
            key, kinds = f"{kind} {nodes.hellos[partition]} node-{partition}", HELLO_KINDS
        else:
            group = exchange_of(message.metadata.group_id)
            key, kinds = f"{kind} {group} node-{partition}", MESSAGE_KINDS
            self.wire.note_request(message, world.now)
        fault = world.message_fault(key, kinds)
        cannot = fault in ("lost-state", "old-state") and not world.plan.own_processes
        # Who is not there cannot leave, and would come back as a node of nobody's.
        if cannot or (fault == "leave" and not here):
            world.fired.pop(key, None)
            fault = None
        nodes.pushed += 1
        message_id = f"message-{nodes.pushed}"
        set_message_id(message, message_id)
        if fault == "refused":
            if kind != HELLO:
                self.wire.note_refusal(message)
            return ""
        rng = world.chance(f"latency {key}")
        start = world.now + rng.uniform(0.05, 0.5)
        if fault == "leave":
            world.nodes[partition] = 0
            world.next_node += 1
            back = node if rng.random() < 0.3 else world.next_node
            when = world.now + rng.uniform(1, 2 * TIMEOUT_S)
            world.at(when, world.nodes.__setitem__, partition, back)
        if fault in ("late", "reorder") and rng.random() < 0.5:
            start += rng.uniform(0.5, 2.5) * TIMEOUT_S
        if fault != "reorder":
            # A node takes the messages of one run in their order.
            queue = world.attempt, partition
            start = nodes.free[queue] = max(start, nodes.free.get(queue, 0.0) + 1e-3)
        run = self._link, world.attempt
        world.at(start, self._execute, message, partition, fault, key, run)
        if fault == "twice-request":
            again = start + rng.uniform(0.1, 2 * TIMEOUT_S)
            world.at(again, self._execute, message, partition, "void", key, run)
        return message_id

    # ----------------------------------------------------------------------------- answer

    def _execute(
        self,
        message: Message,
        partition: int,
        fault: str | None,
        key: str,
        run: tuple[int, int],
    ) -> None:
        world, node = self.world, message.metadata.dst_node_id
        link, attempt = run
        if link == world.link and world.now < world.link_back_at:
            again = world.link_back_at + 0.1
            world.at(again, self._execute, message, partition, fault, key, run)
            return
        if link != world.link:
            return
        if fault == "lose" or world.nodes.get(partition) != node:
            return
        if attempt != world.attempt and not world.plan.own_processes:
            return  # the clients lived in the process that died
        if fault in ("lost-state", "old-state"):
            self._forget(partition, fault)
        reply = self._answered(message, partition, fault, self._flower_run(attempt))
        if fault in ("lose-reply", "void"):
            return
        rng = world.chance(f"reply {key}")
        delay = rng.uniform(0.05, 0.5)
        if fault == "late":
            delay += rng.uniform(0.5, 2.5) * TIMEOUT_S
        for _ in range(2 if fault == "twice-reply" else 1):
            message_id = message.metadata.message_id
            world.at(world.now + delay, self._deliver, message_id, reply, link)

    def _deliver(self, message_id: str, reply: Message, link: int) -> None:
        world = self.world
        if world.now < world.link_back_at:
            world.at(world.link_back_at + 0.1, self._deliver, message_id, reply, link)
        elif link == world.link:
            world.inbox[message_id].append(reply)

    def _answered(
        self,
        message: Message,
        partition: int,
        fault: str | None,
        run: tuple[Any, ...],
    ) -> Message:
        if fault == "raise":
            return Message(Error(0, "RuntimeError: planned"), reply_to=message)
        state = self.nodes.contexts[(*run, partition)]
        context = node_context(1000 + partition, self.world.plan.num_nodes, {}, state)
        try:
            reply = self._client_app(message, context)
        except Exception as error:
            return reply_of_error(message, error)
        self.wire.note_sum(run, message, reply)
        old = self.nodes.last_reply.get(partition)
        kept = {}
        if fault == "old-group" and old is not None:
            reply = Message(old.content, reply_to=message)
            reply.metadata.__dict__["_group_id"] = old.metadata.group_id
        elif fault == "other-run":
            group = f"{exchange_of(message.metadata.group_id)}-1"
            reply.metadata.__dict__["_group_id"] = group
        elif fault == "other-code":
            facts = dict(reply.content["hello"].items()) | {"source": "0" * 64}
            reply = Message(RecordDict({"hello": ConfigRecord(facts)}), reply_to=message)
        elif fault == "malformed":
            # Nothing, or all but the model.
            if (
                self.world.chance(f"half {exchange_of(message.metadata.group_id)}").random()
                < 0.5
            ):
                models = (f".{ARRAYS}", f".{RECORD}")
                kept = {n: r for n, r in reply.content.items() if not n.endswith(models)}
            reply = Message(RecordDict(kept), reply_to=message)
        elif fault == "nan":
            for name, record in list(reply.content.items()):
                if name.endswith(f".{ARRAYS}"):
                    arrays = to_arrays(record).items()
                    bad = {k: np.full_like(array, np.nan) for k, array in arrays}
                    reply.content[name] = to_record(bad)
                elif name.endswith(f".{RECORD}"):
                    self._tamper(message, reply, name)
        elif fault == "superlink":
            # The SuperLink answers in its own name for a message that it does not have.
            message_id = message.metadata.message_id
            reply = Message(Error(4, "Message Unavailable"), reply_to=message)
            names = {"_src_node_id": 1, "_group_id": "", "_reply_to_message_id": message_id}
            reply.metadata.__dict__.update(names)
        if reply.has_content() and fault != "old-group":
            self.nodes.last_reply[partition] = reply
        return reply

    def _flower_run(self, attempt: int) -> tuple[Any, ...]:
        """Return the run that Flower knows, by which it keeps what its apps remember."""
        run = 0 if self.world.is_retried else attempt
        return self._link, self._of_second, run

    def _tamper(self, message: Message, reply: Message, name: str) -> None:
        """Change a number of a vector that goes into a sum."""
        arrays, group = to_arrays(reply.content[name]), message.metadata.group_id
        if "body" not in arrays:
            return
        body = arrays["body"].copy()
        # Always upwards: what two liars do must not cancel.
        place = self.world.chance(f"number {exchange_of(group)}").randrange(body.size)
        body[place] += 1
        reply.content[name] = to_record({**arrays, "body": body})
        client_id = int(name.partition(".")[0].removeprefix("client-"))
        self.wire.tampered.add((group, client_id))

    def _forget(self, partition: int, fault: str) -> None:
        """Lose the clients' memory, or all that is newer than a copy."""
        if fault == "lost-state":
            for key in [k for k in self.nodes.contexts if k[-1] == partition]:
                del self.nodes.contexts[key]
        for client_id in range(partition, 4, self.world.plan.num_nodes):
            folder = self.nodes.states / str(client_id)
            if fault == "lost-state":
                shutil.rmtree(folder, ignore_errors=True)
            else:
                for path in sorted(folder.glob("*"), key=lambda p: _order(p.stem))[-1:]:
                    path.unlink()

    # ------------------------------------------------------------------------------- pull

    def pull_messages(  # type: ignore[override]
        self, reply_to_message_ids: Iterable[str] | None = None, **others: Any
    ) -> list[Message]:
        self._reach()
        pulled = []
        for message_id in reply_to_message_ids or []:
            for reply in self.world.inbox.pop(message_id, []):
                self.disk.moment(f"reply:{reply.metadata.message_type}")
                self._reach()
                self.wire.note_reply(reply)
                pulled.append(reply)
        return pulled


def exchange_of(group: str) -> str:
    """Return a group's name without its attempt."""
    return group.partition("-")[0]


def _order(version: str) -> tuple[int, ...]:
    """Return by what versions of a client's state come one after the other."""
    name, _, attempt = version.partition("-")
    return (int(attempt or 0), *map(int, name.split(".")))
