"""Values of keys that single clients have in place of all clients' own.

One line says them: ``"3: drop-out=0.5; hospital-b: learning-rate=0.01, local-epochs=2"``.
"""

from collections.abc import Mapping
from typing import Any

from fedsuite.core.client_names import client_number
from fedsuite.core.errors import ConfigError, Refused, nearest
from fedsuite.core.keys import Key, Value
from fedsuite.models.model_settings import ModelSettings
from fedsuite.training.fault_plan import FaultPlan
from fedsuite.training.loop import TrainingOptions

KEY = "client-settings"

_NAMES = (
    *("learning-rate", "local-epochs", "local-steps", "batch-size"),
    *("drop-out", "straggler", "lora-rank"),
)
_OWN: Mapping[str, Key] = {
    key.name: key
    for key in (*TrainingOptions.KEYS, *FaultPlan.KEYS, *ModelSettings.KEYS)
    if key.name in _NAMES
}
"""Keys of which a client may have a value of its own."""


def settings_by_entry(text: str) -> dict[str, dict[str, Value]]:
    """Return the values that the key says, by key, by the client's name or number.

    Raises
    ------
    Refused
        If it is not of that form, or a value is not allowed.
    """

    def refused(words: str) -> Refused:
        return Refused({KEY: text}, words, "write '3: learning-rate=0.01, drop-out=0.5'")

    clients: dict[str, dict[str, Value]] = {}
    for entry in filter(None, map(str.strip, text.split(";"))):
        # A name may hold a colon, and no value does.
        client, sign, settings = map(str.strip, entry.rpartition(":"))
        if not sign or not client or not settings:
            raise refused(f"{entry!r} is no client and its values")
        if client in clients:
            raise refused(f"it names client {client!r} twice")
        values = clients[client] = {}
        for setting in map(str.strip, settings.split(",")):
            name, _, value = map(str.strip, setting.partition("="))
            if name not in _OWN:
                near = nearest(name, _OWN)
                hint = f"did you mean {near!r}? " if near else ""
                raise refused(f"{hint}no client has {name!r} alone: one of {_known()}")
            if name in values:
                raise refused(f"client {client!r} has {name} twice")
            try:
                values[name] = _OWN[name].parse_text(value)
            except ConfigError as error:
                raise refused(f"client {client!r}: {error}") from error
    return clients


def settings_of_clients(
    text: str, names: Mapping[int, str], num_clients: int
) -> dict[int, dict[str, Any]]:
    """Return the values of clients, by the Python names of their keys.

    Parameters
    ----------
    text
        Value of the key.
    names
        Client to name, where clients have some.
    num_clients
        Number of clients.

    Raises
    ------
    Refused
        If there is no such client, or one is named twice.
    """
    clients: dict[int, dict[str, Any]] = {}
    for entry, values in settings_by_entry(text).items():
        try:
            client_id = client_number(entry, names, num_clients)
        except ValueError as error:
            raise Refused({KEY: text}, str(error)) from error
        if client_id in clients:
            raise Refused({KEY: text}, f"it names client {entry!r} twice")
        clients[client_id] = {_OWN[name].argument: v for name, v in values.items()}
    return clients


def _known() -> str:
    return ", ".join(_OWN)
