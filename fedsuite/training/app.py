"""The adapter between Flower's messages and the clients of all methods."""

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Protocol, TypeAlias

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common.constant import ErrorCode

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.logs import log_scope
from fedsuite.messages.records import (
    Reply,
    Request,
    add_entry,
    pack_reply,
    unpack_requests,
)


class Answering(Protocol):
    """A client, or a wrapper of one."""

    def answer(self, request: Request) -> Reply:
        """Answer a request."""


ClientFn = Callable[[Context, int], Answering]
"""Makes the client of a number, for a context."""

ReadAhead = Callable[[Context, Sequence[int]], None]
"""Reads the rows of a message's clients, before the first of them answers."""

Fact: TypeAlias = str | int | list[float]
"""What a node tells of itself under one name."""

Fingerprints = Callable[[Context], Mapping[str, Fact]]
"""Returns the hashes of data and code, and the rows, that a node adds to its hello."""

logger = logging.getLogger(__name__)


class Failures:
    """Logs errors in clients' code, once per place."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def tell(self, place: str, client_id: int, error: Exception) -> None:
        """Log an error with its traceback, once per place."""
        if self._is_new(place):
            logger.error("client %d failed", client_id, exc_info=error)

    def pass_on(self, place: str, words: str) -> None:
        """Log another process's words on an error, once per place."""
        if self._is_new(place):
            logger.error("%s", words)

    def _is_new(self, place: str) -> bool:
        new = place not in self._logged
        self._logged.add(place)
        return new


def make_client_app(
    client_fn: ClientFn,
    actions: Sequence[str],
    mods: list[Mod] | None = None,
    fingerprints: Fingerprints | None = None,
    failures: Failures | None = None,
    read_ahead: ReadAhead | None = None,
) -> ClientApp:
    """Return a ClientApp that answers the given message types.

    ``client_fn`` makes each client that a message names; a node with one client gives it
    the node's partition id as number. ``actions`` are the ``ACTIONS`` of the client's
    class, and ``mods`` Flower's, wrapped around each handler. ``fingerprints`` adds to the
    node's hello, such as ``"public"``, a hash of its public data. ``failures`` logs errors
    in the clients' code; None logs those of this app. ``read_ahead`` gets the numbers of a
    message's clients, whose rows are sooner read at once.
    """
    app = ClientApp(mods=mods)
    handle = partial(
        answer, client_fn=client_fn, failures=failures or Failures(), read_ahead=read_ahead
    )
    for action in actions:
        category, _, name = action.partition(".")
        register = {"train": app.train, "evaluate": app.evaluate, "query": app.query}
        register[category](name or "default")(handle)
    app.query("hello")(partial(answer_hello, fingerprints=fingerprints))
    return app


def reply_of_error(message: Message, error: Exception) -> Message:
    """Return the reply to a message at which an app raised an error."""
    reason = f"{type(error).__name__}: {error}"
    failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    return Message(failure, reply_to=message)


def answer_hello(
    message: Message, context: Context, fingerprints: Fingerprints | None = None
) -> Message:
    """Answer the hello with the node's partition, code hash and fingerprints."""
    node_record = ConfigRecord({"source": source_hash()})
    for key, fingerprint in (fingerprints(context) if fingerprints else {}).items():
        node_record[key] = fingerprint
    for key in ("partition-id", "num-partitions"):
        if key in context.node_config:
            node_record[key] = context.node_config[key]
    return Message(RecordDict({"hello": node_record}), reply_to=message)


def answer(
    message: Message,
    context: Context,
    client_fn: ClientFn,
    failures: Failures,
    read_ahead: ReadAhead | None = None,
) -> Message:
    """Answer a message for all clients that it names.

    On a node with several clients, a client's failure becomes its entry of the reply, and
    the others count. On a node with one client, its failure raises, as Flower's clients do.
    """
    metadata = message.metadata
    only_client = context.node_config.get("partition-id", 0)
    requests, hosted = unpack_requests(
        message.content, metadata.message_type, metadata.group_id, int(only_client)
    )
    if not hosted:
        with _noted(requests[0]):
            reply = client_fn(context, requests[0].client_id).answer(requests[0])
        return Message(pack_reply(reply), reply_to=message)
    content = RecordDict()
    if read_ahead is not None and len(requests) > 1:
        # Whose failure it is shows when each client is asked.
        with suppress(Exception):
            read_ahead(context, [request.client_id for request in requests])
    for request in requests:
        client_id = request.client_id
        with _noted(request):
            try:
                reply = client_fn(context, client_id).answer(request)
                add_entry(content, client_id, reply)
            except Exception as error:
                add_entry(content, client_id, *_said_of(error, client_id, failures))
    return Message(content, reply_to=message)


@contextmanager
def _noted(request: Request) -> Iterator[None]:
    """Log the request's answer; log lines inside the block name round and client."""
    began = time.monotonic()
    with log_scope(round=request.server_round, client=request.client_id):
        yield
        seconds = time.monotonic() - began
        logger.info("answered %s in %.3f s", request.message_type, seconds)


def _said_of(error: Exception, client_id: int, failures: Failures) -> tuple[str, str]:
    """Log a client's error; return what its entry of the reply says of it."""
    kind = type(error).__name__
    if isinstance(error, FedsuiteError):
        # One line that says it all: the server logs it with the reply.
        return str(error), kind
    reason = f"{kind}: {error}"
    if isinstance(error, OSError | MemoryError):
        # The machine's, not the code's: it may pass.
        logger.error("client %d failed", client_id, exc_info=error)
        return reason, kind
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{kind} in {Path(where.filename).name}, line {where.lineno}"
    failures.tell(place, client_id, error)
    return reason, kind


@cache
def source_hash() -> str:
    """Return a hash of fedsuite's source as this process would import it."""
    import hashlib

    import fedsuite

    root = Path(fedsuite.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
