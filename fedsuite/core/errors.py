"""Errors that fedsuite raises on purpose.

Each message is one line: what is wrong, where, and what to do. The command line prints the
message without a traceback.
"""

import signal
import traceback
from pathlib import Path

_LONGEST = 4_000
"""Letters of an error that ends something."""


def one_line(text: object, limit: int = 300) -> str:
    """Return foreign text as one printable line, safe for a log.

    ``text`` may come from a client, and may be an error.
    """
    words = " ".join(str(text)[: 4 * limit].split())[:limit]
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else "?" for c in words)


def described(error: BaseException) -> str:
    """Return an error as one line, a foreign one with its type and place."""
    if isinstance(error, FedsuiteError | OSError):
        return one_line(error, _LONGEST)
    places = traceback.extract_tb(error.__traceback__)
    where = (
        f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    )
    return f"{type(error).__name__}: {one_line(error, _LONGEST)}{where}"


class FedsuiteError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(FedsuiteError):
    """An experiment with an unknown key, a wrong type or a bad combination."""


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
