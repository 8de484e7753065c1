"""What is wrong with a reply or a round: code asks for the kind, people read the reason."""

from enum import StrEnum

from fedsuite.core.errors import NotFiniteError


class Kind(StrEnum):
    """What is wrong, as ``events.jsonl`` names it (``cause``) and Prometheus counts it."""

    NOT_CONNECTED = "not-connected"
    NOT_SENT = "not-sent"
    """Flower refused the message."""
    LATE = "late"
    NODE_FAILED = "node-failed"
    """Flower's error, but not one that the app raised."""
    NO_HANDLER = "no-handler"
    """The app at the node has no function for such messages."""
    OTHER_WIRE = "other-wire"
    """The app at the node is a legacy one, and the messages are not."""
    CLIENT_FAILED = "client-failed"
    """An error that may pass, such as a full disk, or that the client raised on purpose."""
    CLIENT_ERROR = "client-error"
    """An error of code that cannot read the message."""
    STALE = "stale"
    """A reply to another round or exchange."""
    UNASKED = "unasked"
    DUPLICATE = "duplicate"
    INCOMPLETE = "incomplete"
    """A node's reply without an entry of the client."""
    MISSING = "missing"
    """What the exchange is about is not there, or of another model."""
    WRONG_ARRAYS = "wrong-arrays"
    WRONG_METRICS = "wrong-metrics"
    NOT_FINITE = "not-finite"
    """NaN or infinity in what came, or in the client's training."""
    BOUNDED = "bounded"
    """A reply of which less counts than it says."""
    SUSPECTED = "suspected"
    """A reply that may have poisoned an earlier round."""
    QUORUM = "quorum"
    """A round with fewer good replies than the quorum."""
    TOO_FEW = "too-few"
    """A round with fewer good replies than the rule of aggregation needs."""
    NOT_SUMMED = "not-summed"
    """A round whose secure sum did not come out."""
    NO_EXAMPLES = "no-examples"
    NO_TRAINING = "no-training"
    """A round in which most clients cannot train from the model."""
    MODEL_NOT_FINITE = "model-not-finite"
    """A round whose new model holds NaN or infinity."""


ABSENT = frozenset({Kind.NOT_CONNECTED, Kind.NOT_SENT, Kind.LATE})
"""Nothing came."""

USED = frozenset({Kind.BOUNDED, Kind.SUSPECTED})
"""The reply counts, or did."""

UNABLE = frozenset({Kind.MISSING, Kind.NO_HANDLER, Kind.OTHER_WIRE})
"""The app lacks what the method needs: its replies in later rounds would too."""

_CODE = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError)
_OF_EXCEPTION = {
    **{error.__name__: Kind.CLIENT_ERROR for error in (*_CODE, ValueError)},
    **{
        error.__name__: Kind.NOT_FINITE
        for error in (NotFiniteError, OverflowError, FloatingPointError)
    },
}


def kind_of_exception(name: str) -> Kind:
    """Return the kind of a client's failure by the class of what it raised."""
    return _OF_EXCEPTION.get(name, Kind.CLIENT_FAILED)
