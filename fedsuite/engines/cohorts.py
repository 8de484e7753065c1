"""Messages of clients that train together, as one message between processes.

Who belongs to a cohort follows from an exchange's clients alone: in the order of their
nodes, the first N, the next N, and so on. So it is the same for any number of workers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedsuite.messages.records import TRAIN
from fedsuite.training.cohort import Cohort

_MEMBERS = "cohort"
_NODES, _IDS = "nodes", "ids"


def cohorts(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """Yield the messages of each cohort; those that ask for no training stand alone."""
    if size == 1 or not messages or messages[0].metadata.message_type != TRAIN:
        yield from ([message] for message in messages)
        return
    ordered = sorted(messages, key=lambda message: message.metadata.dst_node_id)
    for first in range(0, len(ordered), size):
        yield ordered[first : first + size]


def joined(messages: Sequence[Message]) -> Message:
    """Return one message to a cohort, or the only one as it is."""
    first = messages[0].metadata
    if len(messages) == 1:
        return messages[0]
    content = RecordDict()
    content[_MEMBERS] = ConfigRecord(
        {
            _NODES: [message.metadata.dst_node_id for message in messages],
            _IDS: [message.metadata.message_id for message in messages],
        }
    )
    for place, message in enumerate(messages):
        _add(content, place, message.content)
    whole = Message(content, first.dst_node_id, first.message_type, group_id=first.group_id)
    whole.metadata.__dict__["_message_id"] = first.message_id
    return whole


def parts(message: Message) -> list[Message]:
    """Return the messages of which :func:`joined` made one, or the message itself."""
    if _MEMBERS not in message.content:
        return [message]
    members = message.content.config_records[_MEMBERS]
    nodes = cast(list[int], members[_NODES])
    names = cast(list[str], members[_IDS])
    contents, metadata = _split(message.content), message.metadata
    found = []
    for place, (node, name) in enumerate(zip(nodes, names, strict=True)):
        content = contents.get(place, RecordDict())
        own = Message(content, node, metadata.message_type, group_id=metadata.group_id)
        own.metadata.__dict__["_message_id"] = name
        found.append(own)
    return found


def answer_together(
    message: Message, answer: Callable[[Message], Message], cohort: Cohort | None
) -> Message:
    """Return one reply of all clients of a message, joined or not.

    Parameters
    ----------
    message
        Message of :func:`joined`.
    answer
        Function that answers a message to one client, with an error for a failure.
    cohort
        Where the clients wait for each other.
    """
    members = [message] if cohort is None else parts(message)
    if len(members) == 1 or cohort is None:
        return answer(message)
    content = RecordDict({_MEMBERS: ConfigRecord()})
    replies = cohort.together([partial(answer, member) for member in members])
    for place, reply in enumerate(replies):
        if reply.has_error():
            # Beside the members' own records, whatever these are called.
            content[str(place)] = ConfigRecord(
                {"reason": str(reply.error.reason), "code": reply.error.code}
            )
        else:
            _add(content, place, reply.content)
    return Message(content, reply_to=message)


def replies_of(reply: Message, asked: Sequence[Message]) -> Iterator[Message]:
    """Yield the replies of a cohort to its messages."""
    if len(asked) == 1:
        yield reply
        return
    if reply.has_error():
        yield from (Message(reply.error, reply_to=message) for message in asked)
        return
    contents = _split(reply.content)
    for place, message in enumerate(asked):
        failure = reply.content.get(str(place))
        if isinstance(failure, ConfigRecord):
            error = Error(int(cast(int, failure["code"])), str(failure["reason"]))
            yield Message(error, reply_to=message)
        else:
            yield Message(contents.pop(place, RecordDict()), reply_to=message)


def answered(app: ClientApp, message: Message, context: Context) -> Message:
    """Return an app's reply to a message, an error if it fails."""
    try:
        return app(message, context)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        return Message(failure, reply_to=message)


def _add(content: RecordDict, place: int, own: RecordDict) -> None:
    for name, record in own.items():
        content[f"{place}/{name}"] = record


def _split(content: RecordDict) -> dict[int, RecordDict]:
    """Return the records of each member, by its place."""
    found: dict[int, RecordDict] = {}
    for key, record in content.items():
        place, slash, name = key.partition("/")
        if slash:
            found.setdefault(int(place), RecordDict())[name] = record
    return found
