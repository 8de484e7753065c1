"""The nodes of an app in one process: their contexts, and their answers."""

import logging
import random
import time
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedsuite.core.errors import described
from fedsuite.core.keys import Value
from fedsuite.core.rng import all_gpus, seeded, stream_seed

logger = logging.getLogger("flwr")

_Entry = TypeVar("_Entry")


class Answer(NamedTuple):
    """A node's reply, and the seconds that it took."""

    reply: Message
    seconds: float


@dataclass(frozen=True)
class Federation:
    """What all processes of a run know of its nodes.

    Parameters
    ----------
    node_ids
        Ids by partition.
    run_id
        Id of the run.
    run_config
        The ``context.run_config`` of both components.
    seed
        Seed of the global random streams; None leaves them to the app.
    """

    node_ids: tuple[int, ...]
    run_id: int
    run_config: Mapping[str, Value]
    seed: int | None = None

    @classmethod
    def of(
        cls, num_nodes: int, run_config: Mapping[str, Value], seed: int | None
    ) -> "Federation":
        """Return a federation whose ids are drawn, as Flower's are."""
        seeded_stream = random.Random(stream_seed(seed or 0, "node-ids"))
        stream = random.SystemRandom() if seed is None else seeded_stream
        ids: dict[int, None] = {}
        while len(ids) <= num_nodes:
            # Flower's ids have 64 bits; 0 and 1 are those of ServerApp and SuperLink.
            ids[stream.randrange(2, 1 << 63)] = None
        run_id, *node_ids = ids
        return cls(tuple(node_ids), run_id, dict(run_config), seed)

    def streams(
        self, purpose: str, partition: int = 0, count: int = 0
    ) -> AbstractContextManager[None]:
        """Return a block with global random streams of its own, if there is a seed."""
        if self.seed is None:
            return nullcontext()
        return seeded(stream_seed(self.seed, purpose, count, partition), all_gpus())


class Nodes:
    """The nodes that live in this process.

    Parameters
    ----------
    client_app
        What answers.
    federation
        The federation, of which some nodes live here.
    """

    def __init__(self, client_app: ClientApp, federation: Federation) -> None:
        self._client_app = client_app
        self._federation = federation
        self._states: dict[int, RecordDict] = {}
        self._configs: dict[int, dict[str, Value]] = {}
        self._counts: dict[int, int] = {}
        self._places: set[tuple[str, int | None]] = set()

    def answer(self, message: Message, partition: int) -> Answer:
        """Return a node's answer; an error, with Flower's code, where its code fails."""
        began = time.perf_counter()
        count = self._counts[partition] = self._counts.get(partition, 0) + 1
        context = self._context(partition)
        with self._federation.streams("client", partition, count):
            try:
                reply = self._client_app(message, context)
                if not isinstance(reply, Message):
                    raise TypeError(f"it returned a {type(reply).__name__}, no Message")
            except (Exception, SystemExit) as error:
                # As of a node's own process, which sys.exit ends, and not the run.
                reply = self._failed(message, partition, error)
            else:
                # As in Flower, a node whose code failed keeps the state from before.
                self._keep(partition, context)
        return Answer(reply, time.perf_counter() - began)

    def _context(self, partition: int) -> Context:
        federation = self._federation
        return Context(
            run_id=federation.run_id,
            node_id=federation.node_ids[partition],
            node_config={
                "partition-id": partition,
                "num-partitions": len(federation.node_ids),
            },
            state=own_copy(self._states.get(partition)),
            run_config=dict(self._configs.get(partition, federation.run_config)),
        )

    def _keep(self, partition: int, context: Context) -> None:
        # Most apps leave nothing there, and there may be many nodes.
        if context.state or partition in self._states:
            self._states[partition] = context.state
        if context.run_config != self._federation.run_config:
            self._configs[partition] = context.run_config

    def _failed(self, message: Message, partition: int, error: BaseException) -> Message:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = (frame.filename, frame.lineno)
        # The traceback once: the same fault comes back in every round.
        logger.error(
            "node %d failed in %s: %s",
            partition,
            message.metadata.message_type,
            described(error),
            exc_info=None if place in self._places else error,
        )
        self._places.add(place)
        reason = f"{type(error)}:<'{error}'>"
        failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        return Message(failure, reply_to=message)


def own_copy(content: RecordDict | None) -> RecordDict:
    """Return records that can be changed without a change to others'; arrays are shared.

    An ``Array`` is its bytes, which nobody can write to.
    """
    copy = RecordDict()
    for name, record in (content or {}).items():
        if isinstance(record, ArrayRecord):
            arrays = ArrayRecord()
            for key, array in record.items():
                arrays[key] = array
            copy[name] = arrays
        elif isinstance(record, MetricRecord):
            copy[name] = MetricRecord({key: _unshared(v) for key, v in record.items()})
        else:
            copy[name] = ConfigRecord({key: _unshared(v) for key, v in record.items()})
    return copy


def _unshared(value: _Entry) -> _Entry:
    return cast(_Entry, list(value)) if isinstance(value, list) else value
