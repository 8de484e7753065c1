"""A stage of the server's round: what a reply, and then the model's step, goes through.

A round asks, collects and checks, reduces, steps, and tells. What each reply goes through
stands in :mod:`fedsuite.rounds.round`, in the order in which replies pass it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from fedsuite.messages.records import Arrays
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.validation import ClientReply

State = dict[str, Any]
"""What is remembered: arrays and JSON values, in dictionaries that nest as they like."""


class Stage:
    """One stage; a subclass overrides what it needs, and the rest lets all pass.

    Attributes
    ----------
    name
        Name of its state in checkpoints; empty if it has none.
    """

    name: ClassVar[str] = ""

    def trusted(self, client_ids: Sequence[int]) -> Sequence[int]:
        """Return those of some clients that may be drawn to train, in their order."""
        return client_ids

    def ask(self, exchange: Exchange) -> Exchange:
        """Return the round's message to train as it is to be sent."""
        return exchange

    def open(self, exchange: Exchange) -> None:
        """Hear to which exchange the next replies are."""

    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        """Return a good reply as it counts; nothing holds it back, or drops it."""
        return (reply,)

    def rest(self) -> Iterable[ClientReply]:
        """Return what was held back: all replies to the exchange are there."""
        return ()

    def step(self, old: Arrays, new: Arrays) -> Arrays:
        """Return the new model, of the old one and of what the method made of it."""
        return new

    def counted(self) -> None:
        """Hear that the model took the round's step: remember what was prepared."""

    def state(self) -> State:
        """Return what must survive a restart; nobody writes into it later."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` returned."""
