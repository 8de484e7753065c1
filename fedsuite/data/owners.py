"""Clients by name: of natural owners, such as hospitals, and those that never train."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedsuite.core.client_names import client_number
from fedsuite.core.errors import Refused, one_line
from fedsuite.data.specs import IntArray

KEY = "evaluation-only"

_LONGEST = 60
_MOST_NAMES = 10_000
"""Owners of which names are kept; more are known by number."""


def numbered(owners: npt.NDArray[np.generic]) -> tuple[IntArray, tuple[str, ...]]:
    """Return each row's owner as a number, in the order of the names, and the names.

    No names of very many owners, or of such as look alike in a line.
    """
    names, numbers = np.unique(owners, return_inverse=True)
    return numbers.astype(np.int64), shown_names(names.tolist())


def shown_names(names: Sequence[object]) -> tuple[str, ...]:
    """Return names as tables show them; none of very many, or of such as look alike."""
    if len(names) > _MOST_NAMES:
        return ()
    shown = tuple(one_line(str(name), _LONGEST) for name in names)
    return shown if len(set(shown)) == len(shown) and all(shown) else ()


def named_clients(text: str, names: Mapping[int, str], num_clients: int) -> frozenset[int]:
    """Return the clients that the key ``evaluation-only`` names.

    Parameters
    ----------
    text
        Names or numbers, comma-separated. What is a client's name is no number.
    names
        Client to name, where clients have some.
    num_clients
        Number of clients.

    Raises
    ------
    Refused
        If it names no client, one twice, or all.
    """
    clients: set[int] = set()
    # A name may hold commas.
    entries = [text.strip()] if text.strip() in names.values() else text.split(",")
    for entry in filter(None, map(str.strip, entries)):
        try:
            client_id = client_number(entry, names, num_clients)
        except ValueError as error:
            raise Refused({KEY: text}, str(error)) from error
        if client_id in clients:
            raise Refused({KEY: text}, f"it names client {entry!r} twice")
        clients.add(client_id)
    return frozenset(clients)


def refuse_nobody(text: str, evaluation_only: frozenset[int], num_clients: int) -> None:
    """Refuse a federation without a client that trains.

    Raises
    ------
    Refused
        Naming the key.
    """
    if len(evaluation_only) >= num_clients:
        raise Refused(
            {KEY: text}, "no client is left that has rows to train on", "leave one out"
        )
