"""The local engine, Flower's Grid in this process, without Ray and sockets.

A message is answered when its reply is taken. So a strategy that reduces replies as they
come holds one reply at a time. Arrays are handed over without serialisation.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from typing_extensions import override

from fedsuite.core.keys import AUTO, Value
from fedsuite.core.own_process import cores
from fedsuite.core.progress import counted
from fedsuite.engines.grid import FIRST_NODE, GridHere, node_context
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.records import num_clients_in
from fedsuite.results.layout import MANIFEST
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback
from fedsuite.running.server import FinishedRun, run_experiment
from fedsuite.running.worker import Worker, client_app_for, memory_store
from fedsuite.training.app import Failures, reply_of_error
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity, set_message_id
from fedsuite.workarounds.prompt_grid import Replies

if TYPE_CHECKING:
    from fedsuite.engines.pool.workers import WorkerPool

MOST_NODES = 1000
"""Nodes beyond which clients share them: each is greeted, which takes 60 microseconds."""

CLIENTS_PER_MESSAGE = 32
"""Most clients that one message asks."""

_REPLY_BYTES = 4 << 20
"""Most bytes of arrays in the reply to several clients' message."""

_MESSAGES_PER_PROCESS = 8
"""Least messages of an exchange to each process, for they may take unlike times."""


class LocalGrid(GridHere):
    """A Grid that calls a ClientApp in this process.

    The grid works with any ClientApp and any Flower strategy, inside
    :func:`flower_identity`.

    Parameters
    ----------
    client_app
        ClientApp that answers the messages.
    num_nodes
        Number of nodes, with ids 1000, 1001, ... and partition ids 0, 1, ...
    run_config
        The ClientApp's ``context.run_config``.
    store
        Store of the clients' state in memory, if any.
    most_clients
        Most clients that a strategy may ask in one message, at whichever node.
    """

    _processes = 1

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        run_config: Mapping[str, Value] | None = None,
        store: MemoryStore | None = None,
        most_clients: int = 1,
    ) -> None:
        super().__init__(1, range(FIRST_NODE, FIRST_NODE + num_nodes))
        self._most_clients = most_clients
        self._client_app = client_app
        self._store = store
        self._message_ids = itertools.count(1)
        self._run_config = dict(run_config or {})
        self._states: dict[int, RecordDict] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Replies:
        """Return replies one at a time; a client works when its reply is taken."""
        sent = list(messages)
        asked = sum(map(_num_clients, sent))
        return Replies(counted(self._answers(sent), asked, "replies", _num_clients))

    def clients_per_message(self, asked: int, reply_bytes: int) -> int:
        """Return how many clients a strategy may ask in one message."""
        most = min(self._most_clients, _REPLY_BYTES // max(reply_bytes, 1))
        if self._processes > 1:
            most = min(most, asked // (self._processes * _MESSAGES_PER_PROCESS))
        return max(most, 1)

    def persist_clients(self, versions: Mapping[int, str]) -> None:
        """Write the clients' states of a checkpoint."""
        if self._store is not None:
            self._store.persist(versions)

    def prune_clients(self, versions: Mapping[int, str]) -> None:
        """Delete clients' states that no checkpoint needs."""
        if self._store is not None:
            self._store.prune(versions)

    @override
    def _answers(self, messages: Sequence[Message]) -> Iterator[Message]:
        known, refused = [], []
        for message in messages:
            set_message_id(message, f"local-{next(self._message_ids)}")
            if message.metadata.dst_node_id in self._node_ids:
                known.append(message)
            else:
                unknown = Error(ErrorCode.NODE_UNAVAILABLE, "there is no such node")
                refused.append(Message(unknown, reply_to=message))
        return itertools.chain(self._answers_of_nodes(known), refused)

    def _answers_of_nodes(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Yield the replies to messages to existing nodes, in any order."""
        return map(self._answer_here, messages)

    def _answer_here(self, message: Message) -> Message:
        """Answer a message to an existing node in this process."""
        context = node_context(
            message.metadata.dst_node_id,
            len(self._node_ids),
            self._run_config,
            self._states.get(message.metadata.dst_node_id),
        )
        try:
            return self._client_app(message, context)
        except Exception as error:
            return reply_of_error(message, error)
        finally:
            # Most apps leave nothing there, and there may be many nodes.
            if context.state:
                self._states[message.metadata.dst_node_id] = context.state


class PooledGrid(LocalGrid):
    """A Grid whose messages worker processes and this process answer.

    Parameters
    ----------
    pool
        The other processes.
    client_app, num_nodes, run_config, store, most_clients
        As for :class:`LocalGrid`.
    """

    def __init__(
        self,
        pool: "WorkerPool",
        client_app: ClientApp,
        num_nodes: int,
        run_config: Mapping[str, Value] | None = None,
        store: MemoryStore | None = None,
        most_clients: int = 1,
    ) -> None:
        super().__init__(client_app, num_nodes, run_config, store, most_clients)
        self._pool = pool
        self._processes = 1 + pool.num_workers

    @override
    def _answers_of_nodes(self, messages: Sequence[Message]) -> Iterator[Message]:
        return self._pool.answers(messages, self._answer_here)


def _num_clients(message: Message) -> int:
    return num_clients_in(message.content) if message.has_content() else 1


def run_local(
    experiment: Experiment,
    folder: Path,
    *,
    num_supernodes: int = 0,
    callbacks: Sequence[Callback] = (),
) -> FinishedRun:
    """Run an experiment in this process.

    Parameters
    ----------
    experiment
        What to run.
    folder
        The run's folder.
    num_supernodes
        Number of nodes; 0 is one node per client, up to :data:`MOST_NODES`.
    callbacks
        Callbacks of the caller's own.
    """
    run = experiment.group(RunSettings)
    state = folder / "state" if run.state_dir == AUTO else Path(run.state_dir) / folder.name
    # It deletes what a killed process spilled there, not what one that runs does.
    there = (folder / MANIFEST).exists()
    with RunFolder.unused(folder) if there else nullcontext():
        store = memory_store(experiment, state)
    clients = experiment.num_clients
    nodes = num_supernodes or min(clients, MOST_NODES)
    workers = min(run.workers or cores(), clients)
    failures = Failures()
    with flower_identity(), ExitStack() as stack:
        pool = None
        if workers > 1:
            from fedsuite.engines.pool.workers import WorkerPool

            # First, so that the workers load their modules while this process does.
            pool = WorkerPool(experiment, folder.name, nodes, workers - 1, store, failures)
            stack.callback(pool.close)
        app = client_app_for(Worker(experiment, store), failures)
        how = (app, nodes, dict(experiment.values), store, CLIENTS_PER_MESSAGE)
        grid = LocalGrid(*how) if pool is None else PooledGrid(pool, *how)
        return run_experiment(experiment, grid, folder, callbacks=callbacks)
