"""Logs, one JSON object per line if the environment variable FEDSUITE_LOG is json.

Each line has time, level, logger and message, and, where known, ``run``, ``round``,
``client`` and ``site``. Lines hold numbers, names and reasons, never arrays or rows. Each
process reads its own environment, so a site decides what it logs.

A strategy in somebody else's Flower app logs through Flower: see :class:`ServerLogger`.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType

from typing_extensions import override

from fedsuite.core.errors import ConfigError, described
from fedsuite.core.output import print_line

VARIABLE = "FEDSUITE_LOG"

LONGEST = 2000
"""Most characters of a message."""

Fields = Mapping[str, str | int]

_NOTHING: Fields = MappingProxyType({})
_scope: ContextVar[Fields] = ContextVar("fedsuite_log_scope", default=_NOTHING)

logger = logging.getLogger(__name__)
_flower_logger = logging.getLogger("flwr")


@contextmanager
def log_scope(**fields: str | int) -> Iterator[None]:
    """Add fields, such as ``round=3``, to every log line inside the block.

    Do not use the block in a generator, where the fields would leak into other lines.
    """
    token = _scope.set({**_scope.get(), **fields})
    try:
        yield
    finally:
        _scope.reset(token)


def in_own_run() -> bool:
    """Return whether this process runs fedsuite, not somebody else's Flower app."""
    return "run" in _scope.get()


class ServerLogger:
    """Logger of strategies, which run in other people's Flower apps too.

    A run of fedsuite logs to ``logging.getLogger(name)``. Nobody has set up that logger in
    somebody else's ServerApp, so there the lines go to Flower's logger.

    Parameters
    ----------
    name
        Name of the logger in a run of fedsuite.
    """

    def __init__(self, name: str) -> None:
        self._own = logging.getLogger(name)

    def warning(self, message: str, *args: object) -> None:
        """Log a warning."""
        logger = self._own if in_own_run() else _flower_logger
        logger.warning(message, *args, stacklevel=2)

    def tell(self, message: str, *args: object) -> None:
        """Log progress in somebody else's ServerApp; a run of fedsuite reports its own."""
        if not in_own_run():
            _flower_logger.info(message, *args, stacklevel=2)


class JsonFormatter(logging.Formatter):
    """Formatter of one line of ASCII JSON per record, which nothing can break."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, str | int] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_scope.get(),
            "message": record.getMessage()[:LONGEST],
        }
        if record.exc_info and record.exc_info[0] is not None:
            kind, error = record.exc_info[:2]
            line["error"] = f"{kind.__name__}: {error}"[:LONGEST]
        return json.dumps(line)


def json_logs() -> bool:
    """Return whether this process is to log JSON.

    Raises
    ------
    ConfigError
        If the variable says something else that is not known.
    """
    mode = os.environ.get(VARIABLE, "")
    if mode not in ("", "text", "json"):
        raise ConfigError(f"environment variable {VARIABLE} = {mode!r}: text or json")
    return mode == "json"


def configure_logs() -> None:
    """Make fedsuite's loggers write JSON to standard error, if that is asked for."""
    package = logging.getLogger("fedsuite")
    if not json_logs() or any(
        isinstance(handler.formatter, JsonFormatter) for handler in package.handlers
    ):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    package.propagate = False


def write_line(line: str) -> None:
    """Tell a person a line of progress, or the log where it is JSON."""
    if json_logs():
        logger.info(line)
    else:
        print_line(line)


@contextmanager
def harmless(what: str, write: Callable[[str], None] = write_line) -> Iterator[None]:
    """Write one line, in place of an error, where something could not be made.

    For what is made of work that is done, such as its plots.

    Parameters
    ----------
    what
        What is made inside the block.
    write
        Function that prints a line.
    """
    try:
        yield
    except Exception as error:  # whatever a library raises, the work itself is done
        write(f"no {what}: {described(error)}")
