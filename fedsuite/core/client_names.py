"""Clients as people name them: by number, or by name where they have one."""

from collections.abc import Mapping

_SHOWN = 10


def client_number(entry: str, names: Mapping[int, str], num_clients: int) -> int:
    """Return the number of the client that an entry names.

    Parameters
    ----------
    entry
        Name or number. What is a client's name is no number.
    names
        Client to name, where clients have some.
    num_clients
        Number of clients.

    Raises
    ------
    ValueError
        If there is no such client; the message is a clause that says which there are.
    """
    by_name = {name: client_id for client_id, name in names.items()}
    if entry in by_name:
        return by_name[entry]
    if entry.isdecimal() and int(entry) < num_clients:
        return int(entry)
    some = [*by_name][:_SHOWN]
    more = f" and {len(by_name) - _SHOWN} more" if len(by_name) > _SHOWN else ""
    known = f", or {', '.join(some)}{more}" if some else ""
    raise ValueError(f"no client {entry!r}: clients are 0 to {num_clients - 1}{known}")
