"""A strategy's settings as typed attributes of its clients."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from fedsuite.messages.array_records import RecordError
from fedsuite.messages.records import ConfigValue

T = TypeVar("T", bool, int, float, str)

_WORDS = {bool: "switch", int: "number", float: "number", str: "text"}


class Hearing(Protocol):
    """A client that keeps the settings of the message it is answering."""

    client_id: int
    heard: Mapping[str, ConfigValue]


class Told(Generic[T]):
    """A setting in each message, under the attribute's name in kebab case.

    The strategy declares it, with default and bounds: ``key(..., told=TRAIN)``. A float may
    come as an int. ``otherwise`` is the value where the message has none; None makes that
    an error.
    """

    def __init__(self, kind: type[T], *, otherwise: T | None = None) -> None:
        self.kind: type[T] = kind
        self.otherwise: T | None = otherwise
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.replace("_", "-")

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Hearing, owner: type) -> T: ...
    def __get__(self, client: Hearing | None, owner: type) -> Self | T:
        if client is None:
            return self
        value = client.heard.get(self.name, self.otherwise)
        if type(value) is int and self.kind is float:
            value = float(value)
        if type(value) is not self.kind:
            raise RecordError(
                f"client {client.client_id}: the message has no {_WORDS[self.kind]} "
                f"{self.name}: use the strategy that belongs to this client, or put it "
                "into the config"
            )
        checked: Any = value
        return checked  # type: ignore[no-any-return]


@cache
def told_of(client: type) -> Mapping[str, type]:
    """Return the settings that a client's class reads from messages: key to type."""
    attributes = {n: getattr(client, n) for c in client.__mro__ for n in vars(c)}
    return {a.name: a.kind for a in attributes.values() if isinstance(a, Told)}
