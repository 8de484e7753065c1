"""Messages as bytes, as Flower sends them.

Seen in flwr 1.39, 1.41 and 1.42. To delete when a public name of Flower does it.
"""

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto


def message_to_bytes(message: Message) -> bytes:
    """Return a message, its metadata too, as bytes."""
    return bytes(message_to_proto(message).SerializeToString())


def message_from_bytes(data: bytes) -> Message:
    """Return the message of :func:`message_to_bytes`."""
    proto = MessageProto()
    proto.ParseFromString(data)
    return message_from_proto(proto)
