"""Errors that fedsuite raises on purpose.

Each message is one line: what is wrong, where, and what to do. The command line prints the
message without a traceback.
"""

import difflib
import re
import signal
import traceback
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

_LONGEST = 4_000
"""Letters of an error that ends something."""


def one_line(text: object, limit: int = 300) -> str:
    """Return foreign text as one printable line, safe for a log.

    ``text`` may come from a client, and may be an error.
    """
    return printable(" ".join(str(text)[: 4 * limit].split())[:limit])


def printable(text: str) -> str:
    """Return foreign text without what a terminal or a file's encoding would act on.

    Control characters, escapes, letters that turn the direction of writing, and halves of
    a letter become question marks; line ends too.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def nearest(name: object, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the name that was probably meant, in whatever case; empty for none."""
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(str(name).lower(), by_lower, 1, cutoff)
    return by_lower[near[0]] if near else ""


def described(error: BaseException, place: str = "") -> str:
    """Return an error as one line, a foreign one with its type and place.

    The place is that of the innermost line, unless another one is given.
    """
    if isinstance(error, FedsuiteError | OSError):
        return one_line(error, _LONGEST)
    places = traceback.extract_tb(error.__traceback__)
    if places and not place:
        place = f"{Path(places[-1].filename).name}, line {places[-1].lineno}"
    where = f" ({place})" if place else ""
    words = one_line(error, _LONGEST)
    return f"{type(error).__name__}{': ' if words else ''}{words}{where}"


class FedsuiteError(Exception):
    """Base of all errors raised on purpose; a long message is cut off."""

    def __str__(self) -> str:
        return _shortened(super().__str__())


def _shortened(message: str) -> str:
    """Return a message, which may name what a file of others holds, or how it begins."""
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ..."


class ConfigError(FedsuiteError):
    """An experiment with an unknown key, a wrong type or a bad combination.

    Parameters
    ----------
    message
        One line.
    keys
        The keys that it is about, for who knows where these were given.
    """

    def __init__(self, message: str, keys: Collection[str] = ()) -> None:
        super().__init__(message)
        self.keys = frozenset(keys)


class Refused(ConfigError, ValueError):
    """Values of keys that are refused, and why.

    A key is spelled ``local-steps`` in an experiment and on a command line, and
    ``local_steps`` where ``in_python`` is set.

    Parameters
    ----------
    values
        Key to value; the first is refused, beside the others. Beside others, the value of
        ``method`` is a name.
    why, advice
        Clauses; ``{local-steps}`` stands for the key's name.
    idle
        Whether the first value changes nothing beside the others.
    """

    in_python = False

    def __init__(
        self, values: Mapping[str, object], why: str, advice: str = "", idle: bool = False
    ) -> None:
        super().__init__(why, values)
        self.values, self.idle = values, idle
        self.text = "; ".join(filter(None, (why, advice)))

    def __str__(self) -> str:
        subject, *others = (self._said(key, value) for key, value in self.values.items())
        verb = "has no effect with" if self.idle else "cannot go with"
        head = f"{subject} {verb} {' and '.join(others)}" if others else subject
        of_method = next(iter(self.values)) == "method" and bool(others)
        place = "" if self.in_python or of_method else "key "
        text = re.sub(r"{([a-z0-9-]+)}", self._spelled, self.text)
        return _shortened(f"{place}{head}: {text}")

    def _said(self, key: str, value: object) -> str:
        if key == "method" and len(self.values) > 1:
            return str(value) if self.in_python else f"method {value}"
        return f"{key.replace('-', '_') if self.in_python else key} = {value!r}"

    def _spelled(self, name: re.Match[str]) -> str:
        return name[1].replace("-", "_") if self.in_python else name[1]


class DataError(FedsuiteError):
    """Data that is missing, unreadable, or cannot be partitioned as asked."""


class RunError(FedsuiteError):
    """A run that cannot start, go on, or be resumed."""


class NotFiniteError(RunError):
    """A client's training whose loss is NaN or infinite; the server asks for the class."""


class Stopped(KeyboardInterrupt):
    """A run that Ctrl-C ended; the message says where, and the command to go on.

    Parameters
    ----------
    message
        One line.
    code
        The exit code of the command: 128 plus the signal's number.
    """

    def __init__(self, message: str, code: int = 128 + signal.SIGINT) -> None:
        super().__init__(message)
        self.code = code
