"""The parent's side of worker processes."""

import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines.pool.arena import (
    REPLIES,
    SHARED,
    TURNS,
    Arena,
    Arenas,
    Get,
    down_arena,
    new_descriptor,
    up_arena,
)
from fedsuite.engines.pool.packing import (
    Told,
    hear_arrays,
    hear_content,
    tell_arrays,
    tell_content,
    tell_record,
)
from fedsuite.engines.pool.process import start_child
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import START_VERSIONS, Request, unpack_requests
from fedsuite.training.app import Failures
from fedsuite.training.store import ClientStore

_WINDOW = 4
"""Messages per worker that may be ahead of the oldest message without a reply. Early
replies wait for their turn, so a window keeps memory from growing with the number of
clients."""


class WorkerProcess:
    """One worker and its messages.

    Parameters
    ----------
    number
        From 1, for errors.
    shared
        Descriptor of the arena that all workers read from.
    setup
        First line to the worker.
    """

    def __init__(self, number: int, shared: int, setup: Mapping[str, Any]) -> None:
        self._number = number
        own = [new_descriptor() for _ in range(TURNS + REPLIES)]
        ours, theirs = socket.socketpair()
        threads = setup["experiment"]["threads"]
        self._process = start_child(ours, theirs, (shared, *own), threads)
        self.line = Connection(ours.detach())
        self._arenas = Arenas([shared, *own])
        self._descriptors = own
        self._sent = 0
        self._replies = deque(range(REPLIES))
        self._replies_under_way: deque[int] = deque()
        self.messages: deque[tuple[int, Message]] = deque()
        self._tell(setup)

    def send(
        self,
        index: int,
        message: Message,
        states: Sequence[tuple[int, str, Any]],
        known: Callable[[ArrayRecord], Told | None],
    ) -> None:
        """Send a message to the worker.

        Parameters
        ----------
        index
            Place of the message in its exchange.
        message
            Message to answer.
        states
            Client, version and arrays of each client's stored state, or why the state is
            missing.
        known
            JSON of records that already lie in the arena of all workers.
        """
        arena = self._arenas.all[down_arena(self._sent % TURNS)]
        arena.clear()
        metadata = message.metadata
        reply = self._replies.popleft()
        self._replies_under_way.append(reply)
        told = {
            "reply": reply,
            "id": metadata.message_id,
            "node": metadata.dst_node_id,
            "type": metadata.message_type,
            "group": metadata.group_id,
            "content": tell_content(message.content, arena.put, known),
            "states": [
                (k, v, found if isinstance(found, str) else tell_arrays(found, arena.put))
                for k, v, found in states
            ],
        }
        self._tell(told)
        self._sent += 1
        self.messages.append((index, message))

    def take(self, store: ClientStore | None, failures: Failures) -> tuple[int, Message]:
        """Return the reply to the oldest message, and the message's index."""
        try:
            answer = json.loads(self.line.recv_bytes())
        except (EOFError, OSError):
            raise self._ended() from None
        index, message = self.messages.popleft()
        reply = self._replies_under_way.popleft()
        if "error" in answer:
            self._replies.append(reply)
            if answer["fatal"]:
                raise ConfigError(answer["fatal"])
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, answer["error"])
            return index, Message(failure, reply_to=message)
        arena = self._arenas.all[up_arena(reply)]
        for place, words in answer["failures"]:
            failures.pass_on(place, words)
        for client_id, version, needed, told in answer["saved"]:
            if store is not None:
                arrays = hear_arrays(told, arena.copy)
                store.save(client_id, version, arrays, set(needed))
        content = hear_content(answer["content"], self._getter(arena, reply))
        return index, Message(content, reply_to=message)

    def _getter(self, arena: Arena, reply: int) -> Get:
        """Return a function that gets a reply's arrays, as views or as copies."""
        give_back = partial(self._replies.append, reply)
        if len(self._replies) + len(self.messages) >= TURNS:
            return arena.lend(give_back)
        # Too many replies are still in use to lend one more.
        give_back()
        return arena.copy

    def stop(self) -> None:
        """Kill the process, which keeps no state of its own."""
        self.line.close()
        self._process.kill()
        self._process.wait()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _tell(self, told: Mapping[str, Any]) -> None:
        try:
            self.line.send_bytes(json.dumps(told).encode())
        except OSError:
            raise self._ended() from None

    def _ended(self) -> RunError:
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        return RunError(
            f"worker process {self._number} ended ({how}): if the machine ran out of "
            "memory, lower the key workers; `fedsuite resume` goes on from the last "
            "checkpoint"
        )


@dataclass
class _Exchange:
    """Messages of one call, and replies not yet taken."""

    waiting: deque[tuple[int, Message]]
    replies: deque[Message] = field(default_factory=deque)
    open: set[int] = field(default_factory=set)


class WorkerPool:
    """Worker processes that answer messages as one process would.

    Parameters
    ----------
    experiment
        Experiment of the clients.
    run_name
        Name of the run, for logs.
    num_nodes
        Number of the federation's nodes.
    num_workers
        Number of processes.
    store
        Store of the clients' state, which travels with the messages.
    failures
        Log of errors in the clients' code.
    """

    def __init__(
        self,
        experiment: Experiment,
        run_name: str,
        num_nodes: int,
        num_workers: int,
        store: ClientStore | None,
        failures: Failures | None = None,
    ) -> None:
        self.num_workers = num_workers
        self._store = store
        self._failures = failures or Failures()
        self._shared_descriptor = new_descriptor()
        self._shared = Arenas([self._shared_descriptor]).all[SHARED]
        self._told: dict[int, tuple[ArrayRecord, Told]] = {}
        self._homes: dict[int, WorkerProcess | None] = {}
        self._exchange: _Exchange | None = None
        setup = {
            "experiment": dict(experiment.values),
            "run": run_name,
            "nodes": num_nodes,
        }
        self._workers: list[WorkerProcess] = []
        self._lines: dict[int, WorkerProcess] = {}
        self._poll = select.poll()
        try:
            for number in range(1, num_workers + 1):
                worker = WorkerProcess(number, self._shared_descriptor, setup)
                self._workers.append(worker)
                self._lines[worker.line.fileno()] = worker
                self._poll.register(worker.line, select.POLLIN)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise RunError(f"cannot start worker processes ({error})") from error
            raise

    def answers(
        self, messages: Sequence[Message], answer_here: Callable[[Message], Message]
    ) -> Iterator[Message]:
        """Yield replies as they come; work begins with the first request for one.

        Parameters
        ----------
        messages
            Messages to answer.
        answer_here
            Function that answers a message in this process while the workers are busy.

        Raises
        ------
        RunError
            If a worker process died.
        """
        self._settle()
        self._told = {}
        self._shared.clear()
        self._share(messages)
        exchange = self._exchange = _Exchange(deque(enumerate(messages)))
        while exchange.waiting or exchange.open:
            self._hand_out(exchange)
            # This process hears nothing while it trains, so it begins when all messages are
            # out.
            taken = self._take_in(exchange, 0) or self._answer_one(exchange, answer_here)
            if not taken:
                self._take_in(exchange, None)
            # Hand out work before the replies, which the caller may keep for long.
            self._hand_out(exchange)
            while exchange.replies:
                yield exchange.replies.popleft()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop()
        self._workers = []
        os.close(self._shared_descriptor)

    # --------------------------------------------------------------------------- machinery

    def _settle(self) -> None:
        """Take in an earlier exchange's replies, whose arenas are used again."""
        while self._exchange is not None and self._exchange.open:
            self._take_in(self._exchange, None)

    def _share(self, messages: Sequence[Message]) -> None:
        """Put records of several messages into the arena of all workers."""
        seen: dict[int, ArrayRecord] = {}
        for message in messages:
            for record in _array_records(message.content):
                if id(record) in seen and id(record) not in self._told:
                    told = tell_record(record, self._shared.put)
                    self._told[id(record)] = record, told
                seen[id(record)] = record

    def _known(self, record: ArrayRecord) -> Told | None:
        held = self._told.get(id(record))
        return held[1] if held else None

    def _hand_out(self, exchange: _Exchange) -> None:
        while self._may_go_on(exchange):
            worker = min(self._workers, key=lambda w: len(w.messages))
            busy = len(worker.messages)
            # The last message is for whichever process is idle, perhaps this one.
            if busy >= TURNS or (busy and len(exchange.waiting) == 1):
                return
            index, message = self._next(exchange, worker)
            exchange.open.add(index)
            worker.send(index, message, self._states(message), self._known)

    def _next(
        self, exchange: _Exchange, worker: WorkerProcess | None
    ) -> tuple[int, Message]:
        """Take a waiting message for a worker (None is this process).

        Rather one of a node that it answered for before, whose data it has made ready.
        """
        waiting = exchange.waiting
        ahead = range(min(len(waiting), 2 * (1 + len(self._workers))))
        nodes = [waiting[place][1].metadata.dst_node_id for place in ahead]
        places = (k for k in ahead if self._homes.get(nodes[k], worker) is worker)
        place = next(places, 0)
        index, message = waiting[place]
        del waiting[place]
        self._homes[nodes[place]] = worker
        return index, message

    def _may_go_on(self, exchange: _Exchange) -> bool:
        """Return whether a message within the window waits."""
        if not exchange.waiting:
            return False
        index = exchange.waiting[0][0]
        oldest = min(exchange.open, default=index)
        return index - oldest <= _WINDOW * (1 + len(self._workers))

    def _answer_one(
        self, exchange: _Exchange, answer_here: Callable[[Message], Message]
    ) -> bool:
        """Answer a waiting message in this process, if the workers are busy."""
        if not self._may_go_on(exchange):
            return False
        _, message = self._next(exchange, None)
        exchange.replies.append(answer_here(message))
        return True

    def _take_in(self, exchange: _Exchange, timeout: int | None) -> bool:
        """Take the replies that have come; return whether there were any.

        Parameters
        ----------
        timeout
            0 does not wait for a reply; None does.
        """
        ready = self._poll.poll(timeout)
        for descriptor, _ in ready:
            index, reply = self._lines[descriptor].take(self._store, self._failures)
            exchange.open.discard(index)
            exchange.replies.append(reply)
        return bool(ready)

    def _states(self, message: Message) -> list[tuple[int, str, Any]]:
        """Return the stored states of a message's clients."""
        if self._store is None:
            return []
        states: list[tuple[int, str, Any]] = []
        for request in _requests_with_states(message):
            client_id, version = request.client_id, request.start_version
            try:
                states.append((client_id, version, self._store.load(client_id, version)))
            except RunError as error:
                states.append((client_id, version, str(error)))
        return states


def _requests_with_states(message: Message) -> Iterator[Request]:
    """Yield the requests of a message that start from a state."""
    versions = (START_VERSIONS in record for record in message.content.values())
    if not any(versions):
        return
    metadata = message.metadata
    requests, _ = unpack_requests(
        message.content, metadata.message_type, metadata.group_id, 0
    )
    yield from (request for request in requests if request.start_version)


def _array_records(content: RecordDict) -> list[ArrayRecord]:
    return [record for record in content.values() if isinstance(record, ArrayRecord)]
