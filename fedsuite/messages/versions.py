"""Names of versions of clients' state: ``ROUND.EXCHANGE``, and the attempt that made it.

The name is also the group of the exchange's messages. A run that goes on after its server
died is another attempt. Clients may still be at work for the old one, so each attempt but
an in-process run's first adds its number: ``5.1-1762424242123``.
"""

import re

_NAME = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:-([0-9]{1,15}))?")


def version_name(server_round: int, exchange: int, attempt: int = 0) -> str:
    """Return the name of what an exchange makes; attempt 0 adds nothing."""
    return f"{server_round}.{exchange}" + (f"-{attempt}" if attempt else "")


def is_version(name: str) -> bool:
    """Return whether a name is that of a version."""
    return _NAME.fullmatch(name) is not None


def exchange_of(name: str) -> str:
    """Return ``ROUND.EXCHANGE`` of a name, the same in all attempts."""
    return name.partition("-")[0]


def is_older(name: str, than: str) -> bool:
    """Return whether a version is of an earlier attempt, or earlier in the same one.

    A name that is no version's is older than none.
    """
    first, second = _order(name), _order(than)
    return first is not None and second is not None and first < second


def _order(name: str) -> tuple[int, int, int] | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    server_round, exchange, attempt = match.groups(default="0")
    return int(attempt), int(server_round), int(exchange)
