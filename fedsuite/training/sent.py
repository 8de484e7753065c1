"""What may leave a client: its class names the records and metrics of its replies.

A reply with anything else is refused before it leaves. So
``docs/how-to/what_leaves_a_site.md``, which is written from these names, cannot say too
little.

``arrays`` is a record with whatever arrays, such as a model; ``class-table/counts`` is one
array of a record; other names are metrics. Of several models one name stands for all, and
of scores the name without the prefixes that say which model and which rows.
"""

import re
from collections.abc import Collection, Iterator
from typing import ClassVar, Protocol

from fedsuite.core.errors import RunError
from fedsuite.core.tasks import ONE_CLASS, is_told_score
from fedsuite.messages.records import (
    ARRAYS,
    NUM_EXAMPLES,
    NUM_STEPS,
    STORED_STATE,
    Reply,
    is_model_record,
)

MODELS = "models"
"""Name of the records of several models."""

SCORES = "scores"
"""Name of all scores but the accuracy, which the key ``scores`` asks for."""

USUAL = frozenset(
    {
        NUM_EXAMPLES,
        NUM_STEPS,
        "loss",
        "accuracy",
        SCORES,
        ONE_CLASS,
        "examples",
        "received-training-loss",
        "training-examples",
    }
)
"""Metrics of any client: of its training, and its scores."""

OF_ANY_METHOD = USUAL | {ARRAYS}
"""What a client may send that trains the model that it got."""

_PREFIX = re.compile("(?:(?:global|trained|refreshed|plain-mean|validation|whole-test)-)+")


class Sends(Protocol):
    """A client's class: what its replies may hold, and whether it keeps anything."""

    SENDS: ClassVar[frozenset[str]]
    KEEPS_STATE: ClassVar[bool]


def may_send(client: type[Sends]) -> frozenset[str]:
    """Return the names of all that replies of a client's class may hold."""
    return client.SENDS | {STORED_STATE} if client.KEEPS_STATE else client.SENDS


def refuse_undeclared(client: str, reply: Reply, names: Collection[str]) -> None:
    """Refuse a reply that holds what is not named.

    Parameters
    ----------
    client
        Name of the client's class, for the error.
    reply
        The reply.
    names
        What it may hold.

    Raises
    ------
    RunError
        Naming what the class does not declare.
    """
    unnamed = [name for name in sent_names(reply, names) if name not in names]
    if unnamed:
        raise RunError(
            f"{client} would send {', '.join(unnamed)}, and does not say so: add it to "
            "SENDS of the class, which says what may leave a site"
        )


def sent_names(reply: Reply, known: Collection[str]) -> Iterator[str]:
    """Yield the names of what a reply holds; arrays of known records are not named."""
    for record, arrays in reply.arrays.items():
        name = MODELS if is_model_record(record) else record
        yield from [name] if name in known else [f"{name}/{array}" for array in arrays]
    for metric in reply.metrics:
        name = metric if metric in known else _PREFIX.sub("", metric, count=1)
        yield SCORES if name not in known and is_told_score(name) else name
