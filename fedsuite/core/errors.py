"""Errors that fedsuite raises on purpose.

Each message is one line: what is wrong, where, and what to do. The command line prints the
message without a traceback.
"""

import re
import signal
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path


def one_line(error: BaseException) -> str:
    """Return the text of a foreign error as one line."""
    return " ".join(str(error).split())


def described(error: BaseException) -> str:
    """Return an error as one line, a foreign one with its type and place."""
    if isinstance(error, FedsuiteError | OSError):
        return one_line(error)
    places = traceback.extract_tb(error.__traceback__)
    where = (
        f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    )
    return f"{type(error).__name__}: {one_line(error)}{where}"


class FedsuiteError(Exception):
    """Base of all errors raised on purpose."""


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
    """Values of keys that are refused, and why; one line, made once for where it is read.

    A key is spelled ``local-steps`` in an experiment and on a command line, and
    ``local_steps`` in Python.

    Parameters
    ----------
    values
        Key to value; the first is refused, beside the others. Of ``method`` it is a name.
    why
        Why, as a clause; ``{local-steps}`` stands for the key's name. May be empty.
    advice
        What to do, likewise.
    idle
        Whether the first value changes nothing beside the others.
    in_python
        Whether keys are spelled as keywords.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        why: str,
        advice: str = "",
        *,
        idle: bool = False,
        in_python: bool = False,
    ) -> None:
        self.values, self._why, self._advice, self._idle = values, why, advice, idle
        self._in_python = in_python
        subject, *others = map(self._said, values)
        if others:
            verb = "has no effect with" if idle else "cannot go with"
            subject = f"{subject} {verb} {' and '.join(others)}"
        text = "; ".join(filter(None, (self._spelled(why), self._spelled(advice))))
        key = "" if in_python or subject.startswith("method ") else "key "
        super().__init__(f"{key}{subject}: {text}", values)

    def in_python(self) -> "Refused":
        """Return the same for who wrote keywords."""
        return Refused(
            self.values, self._why, self._advice, idle=self._idle, in_python=True
        )

    def _said(self, key: str) -> str:
        value = self.values[key]
        if key == "method":
            return str(value) if self._in_python else f"method {value}"
        return f"{self._spelled(f'{{{key}}}')} = {value!r}"

    def _spelled(self, text: str) -> str:
        spell = (lambda key: key.replace("-", "_")) if self._in_python else str
        return re.sub(r"\{([a-z][a-z0-9-]*)\}", lambda name: spell(name[1]), text)


class DataError(FedsuiteError):
    """Data that is missing, unreadable, or cannot be partitioned as asked."""


class RunError(FedsuiteError):
    """A run that cannot start, go on, or be resumed."""


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
