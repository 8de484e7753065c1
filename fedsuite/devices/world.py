"""A world: profiles of devices, when they are there, and which client has which.

A world is one TOML file::

    server-seconds = 1.0            # the server's own time, a round

    [profiles.phone]
    share = 0.9                     # of the clients that no profile names
    multiplications-per-second = [5e8, 2e9]
    up-mbit = [4, 15]
    down-mbit = [15, 60]
    latency-seconds = 0.05          # of one message
    memory-gb = 4                   # without it there is always enough
    availability = "night"          # without it the device is always there

    [profiles.tablet]
    clients = [3, "hospital-b"]     # by number or name

    [availability.night]
    kind = "daily"                  # or "markov", or "table"
    from-hour = 22
    hours = 8

A list of two numbers is a range, in which each client draws evenly on a logarithmic scale.
"""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsuite.core import reading
from fedsuite.core.client_names import client_number
from fedsuite.core.errors import ConfigError, nearest
from fedsuite.core.rng import numpy_stream
from fedsuite.core.text import read_text, read_toml, toml
from fedsuite.devices.availability import (
    DAY,
    HOUR,
    Always,
    Availability,
    Daily,
    Markov,
    Table,
)
from fedsuite.devices.shipped import WORLDS

_BYTES_OF_MBIT, _BYTES_OF_GB = 1e6 / 8, 1e9

_AMOUNTS: Mapping[str, float | None] = {
    "multiplications-per-second": None,
    "up-mbit": None,
    "down-mbit": None,
    "latency-seconds": 0.0,
    "memory-gb": math.inf,
}
"""Amounts of a profile, in the order in which a client draws them, and what stands for one
that is left out; None if none may be."""

_OF_KIND: Mapping[str, Mapping[str, tuple[float | None, float, float]]] = {
    "daily": {
        "from-hour": (None, 0.0, 24.0),
        "hours": (None, 0.0, 24.0),
        "spread-hours": (0.0, 0.0, 24.0),
        "chance": (1.0, 0.0, 1.0),
    },
    "markov": {
        "present-seconds": (None, 0.0, math.inf),
        "away-seconds": (None, 0.0, math.inf),
    },
    "table": {},
}
"""Numbers of each kind of availability: default (None is none), least and largest."""

_ABOVE_0 = {"hours", "chance", "present-seconds", "away-seconds"}


@dataclass(frozen=True)
class Device:
    """What one client's device can do.

    Parameters
    ----------
    profile
        Name of its profile.
    speed
        Multiplications a second, above 0.
    up, down
        Bytes a second, above 0.
    latency
        Seconds that a message is on its way beside its bytes.
    memory
        Bytes.
    availability
        When it is there.
    """

    profile: str
    speed: float
    up: float
    down: float
    latency: float
    memory: float
    availability: Availability

    def seconds(self, work: float, bytes_down: float, bytes_up: float) -> float:
        """Return how long an exchange takes: a message, the work, and the reply.

        Parameters
        ----------
        work
            Multiplications of the client.
        bytes_down, bytes_up
            Payload of message and reply.
        """
        travels = bytes_down / self.down + bytes_up / self.up + 2 * self.latency
        return travels + work / self.speed


def content_of(devices: str) -> str:
    """Return what identifies the world of the key ``devices``: a shipped name, or JSON.

    A file is read, with the table of its availability, and becomes one line. Empty is no
    world.

    Raises
    ------
    ConfigError
        If it is no world.
    """
    if not devices or devices in WORLDS or devices.lstrip().startswith("{"):
        return devices
    path = Path(devices).expanduser()
    try:
        told = read_toml(path)
        _read_tables(told, path.parent)
    except OSError as error:
        near = nearest(devices, WORLDS)
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(
            f"key devices = {devices!r}: {hint}no such file ({error.strerror}); fedsuite "
            f"comes with {', '.join(WORLDS)}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"devices {path}: {error}") from error
    _checked(told, f"devices {path}")
    return json.dumps(told, sort_keys=True)


def parsed(devices: str) -> Mapping[str, Any]:
    """Return the checked world that a shipped name, or JSON, stands for.

    Raises
    ------
    ConfigError
        If it is a file, which only the command reads, or no world.
    """
    if devices in WORLDS:
        return _checked(toml(WORLDS[devices].encode()), f"devices {devices}")
    if not devices.lstrip().startswith("{"):
        raise ConfigError(
            f"key devices = {devices!r}: a file is read by `fedsuite run` and "
            f"`fedsuite.run`: start the run by one of them, or name {', '.join(WORLDS)}"
        )
    try:
        told = reading.parsed(devices)
    except ValueError as error:
        raise ConfigError(f"key devices: it is no JSON: {error}") from error
    return _checked(told, "key devices")


class World:
    """The devices of a federation's clients.

    Parameters
    ----------
    devices
        A shipped name, or a world as JSON.
    seed
        Seed of what is drawn.
    names
        Client to name, where clients have some.
    num_clients
        Number of clients; a profile may name no other.
    """

    def __init__(
        self, devices: str, seed: int, names: Mapping[int, str], num_clients: int
    ) -> None:
        self._told = parsed(devices)
        self._seed = seed
        self.server_seconds = float(self._told.get("server-seconds", 0.0))
        self._known: dict[int, Device] = {}
        self._profile_of: dict[int, str] = {}
        self._spans: dict[str, dict[int, list[tuple[float, float]]]] = {}
        profiles: Mapping[str, Any] = self._told["profiles"]

        def numbered(entry: object, where: str) -> int:
            try:
                return client_number(str(entry), names, num_clients)
            except ValueError as error:
                raise ConfigError(f"devices: {where}: {error}") from error

        for name, profile in profiles.items():
            for entry in profile.get("clients", ()):
                client_id = numbered(entry, f"profile {name}")
                if client_id in self._profile_of:
                    raise ConfigError(f"devices: two profiles name client {entry!r}")
                self._profile_of[client_id] = name
        for name, told in self._told.get("availability", {}).items():
            for entry, begins, ends in told.get("spans", ()):
                client_id = numbered(entry, f"availability {name}")
                spans = self._spans.setdefault(name, {}).setdefault(client_id, [])
                spans.append((float(begins), float(ends)))
        drawn = {n: p for n, p in profiles.items() if "clients" not in p}
        total = sum(p.get("share", 1.0) for p in drawn.values())
        self._shares = [(n, p.get("share", 1.0) / total) for n, p in drawn.items()]
        if not self._shares and len(self._profile_of) < num_clients:
            left = next(k for k in range(num_clients) if k not in self._profile_of)
            raise ConfigError(
                f"devices: client {names.get(left, left)} has no profile: name it, or add "
                "a profile without clients, which takes the rest"
            )

    def device(self, client_id: int) -> Device:
        """Return a client's device."""
        device = self._known.get(client_id)
        if device is None:
            device = self._known[client_id] = self._drawn(client_id)
        return device

    def _drawn(self, client_id: int) -> Device:
        stream = numpy_stream(self._seed, "device", 0, client_id)
        # Each draw is made, used or not: so a changed range changes no other amount.
        place, offset, *shares = stream.random(2 + len(_AMOUNTS)).tolist()
        name = self._profile_of.get(client_id) or self._at(place)
        profile = self._told["profiles"][name]
        amounts = [
            within(profile.get(amount, default), share)
            for (amount, default), share in zip(_AMOUNTS.items(), shares, strict=True)
        ]
        speed, up, down, latency, memory = amounts
        return Device(
            name,
            speed,
            up * _BYTES_OF_MBIT,
            down * _BYTES_OF_MBIT,
            latency,
            memory * _BYTES_OF_GB,
            self._availability(profile.get("availability", ""), offset, client_id),
        )

    def _at(self, place: float) -> str:
        """Return the profile at a place from 0 to 1 among those that are drawn."""
        for name, share in self._shares:
            place -= share
            if place < 0:
                return name
        return self._shares[-1][0]

    def _availability(self, name: str, offset: float, client_id: int) -> Availability:
        if not name:
            return Always()
        told = self._told["availability"][name]
        numbers = _numbers_of(told)
        if told["kind"] == "table":
            spans = self._spans.get(name, {}).get(client_id)
            return Always() if spans is None else Table(spans)
        if told["kind"] == "markov":
            means = numbers["present-seconds"], numbers["away-seconds"]
            return Markov(*means, self._seed, client_id)
        first = numbers["from-hour"] + offset * numbers["spread-hours"]
        length = numbers["hours"] * HOUR
        chance = numbers["chance"]
        return Daily(first * HOUR % DAY, length, chance, self._seed, client_id)


def within(told: float | Sequence[float], share: float) -> float:
    """Return a number, or what lies at a share (0 to 1) of a range, logarithmically."""
    if not isinstance(told, Sequence):
        return float(told)
    low, high = told
    return float(low * (high / low) ** share)


def _numbers_of(told: Mapping[str, Any]) -> dict[str, float]:
    known = _OF_KIND[told["kind"]]
    return {name: float(told.get(name, spec[0])) for name, spec in known.items()}


def _read_tables(told: Mapping[str, Any], folder: Path) -> None:
    """Put the rows of the files that tables name, ``client, from, to``, in their place."""
    tables = told.get("availability", {})
    for name, table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(table, dict) or "file" not in table:
            continue
        path = folder / str(table.pop("file"))
        try:
            lines = csv.reader(io.StringIO(read_text(path)), skipinitialspace=True)
            rows = list(lines) or [[]]
        except csv.Error as error:
            raise ValueError(f"{path}: {error}") from None
        if [cell.strip() for cell in rows[0]] != ["client", "from", "to"]:
            raise ValueError(f"{path}: expected the columns client, from, to")
        try:
            table["spans"] = [
                [row[0].strip(), float(row[1]), float(row[2])] for row in rows[1:] if row
            ]
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{path}, of availability {name}: expected a client and two numbers of "
                "seconds in each row"
            ) from error


def _checked(told: Any, where: str) -> Mapping[str, Any]:
    """Return a world whose every entry is known and allowed.

    Raises
    ------
    ConfigError
        Naming the entry.
    """

    def refuse(entry: str, words: str) -> ConfigError:
        return ConfigError(f"{where}: {entry}: {words}")

    def table(value: object, entry: str, known: Sequence[str]) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise refuse(entry, "expected a table")
        for name in value:
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near!r}? " if near else ""
                raise refuse(entry, f"unknown key {name!r}: {hint}expected {_or(known)}")
        return value

    world = table(told, "the file", ("server-seconds", "profiles", "availability"))
    _check_number(world.get("server-seconds", 0.0), 0.0, math.inf, "server-seconds", refuse)
    kinds = world.get("availability", {})
    kinds = table(kinds, "availability", tuple(kinds) if isinstance(kinds, Mapping) else ())
    for name, value in kinds.items():
        _check_availability(name, value, table, refuse)
    profiles = world.get("profiles")
    if not isinstance(profiles, Mapping) or not profiles:
        raise refuse("profiles", "expected at least one, such as [profiles.phone]")
    known = ("share", "clients", "availability", *_AMOUNTS)
    for name, value in profiles.items():
        entry = f"profile {name}"
        profile = table(value, entry, known)
        for amount, default in _AMOUNTS.items():
            if amount not in profile and default is not None:
                continue
            given = profile.get(amount)
            amounts = given if isinstance(given, list) and len(given) == 2 else [given]
            for number in amounts:
                least = 0.0 if amount == "latency-seconds" and len(amounts) == 1 else None
                _check_number(number, least, math.inf, f"{entry}: {amount}", refuse)
            if amounts != sorted(amounts):
                raise refuse(entry, f"{amount}: the range ends before it begins")
        _check_number(profile.get("share", 1.0), None, math.inf, f"{entry}: share", refuse)
        if "share" in profile and "clients" in profile:
            raise refuse(entry, "it names its clients, so share has no effect")
        if not isinstance(profile.get("clients", []), list):
            raise refuse(entry, 'clients: expected a list, such as [3, "hospital-b"]')
        if not all(isinstance(client, int | str) for client in profile.get("clients", [])):
            raise refuse(entry, "clients: expected numbers and names")
        if profile.get("availability", "") not in ("", *kinds):
            raise refuse(
                entry, f"no availability {profile['availability']!r}: there is {_or(kinds)}"
            )
    return world


def _or(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(names) or "none"


_Refuse = Callable[[str, str], ConfigError]


def _check_number(
    value: object, least: float | None, most: float, entry: str, refuse: _Refuse
) -> None:
    """Refuse what is no finite number from ``least``, None being above 0, to ``most``."""
    low = 0.0 if least is None else least
    if isinstance(value, int | float) and not isinstance(value, bool):
        # A whole number of JSON may be larger than any float.
        inside = low <= value <= most and abs(value) <= sys.float_info.max
        if inside and (least is not None or value != 0):
            return
    bounds = "above 0" if least is None else f"from {least:g}"
    upper = "" if most == math.inf else f" to {most:g}"
    raise refuse(entry, f"{value!r}: expected a number {bounds}{upper}")


def _check_availability(
    name: str,
    value: object,
    table: Callable[[object, str, Sequence[str]], Mapping[str, Any]],
    refuse: _Refuse,
) -> None:
    entry = f"availability {name}"
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _OF_KIND:
        raise refuse(entry, f"kind = {kind!r}: expected one of {_or(_OF_KIND)}")
    numbers = _OF_KIND[kind]
    more = ("spans",) if kind == "table" else ()
    told = table(value, entry, ("kind", *numbers, *more))
    for key, (default, least, most) in numbers.items():
        low = None if key in _ABOVE_0 else least
        _check_number(told.get(key, default), low, most, f"{entry}: {key}", refuse)
    if kind == "daily" and told["hours"] == 24:
        raise refuse(entry, "hours = 24: leave the profile's availability out")
    if kind == "table":
        spans = told.get("spans")
        if not isinstance(spans, list) or not spans:
            raise refuse(entry, "expected file = 'FILE.csv', or spans")
        for span in spans:
            if not isinstance(span, list) or len(span) != 3:
                raise refuse(entry, f"{span!r}: expected [client, from, to]")
            for number in span[1:]:
                _check_number(number, -math.inf, math.inf, entry, refuse)
            if span[1] >= span[2]:
                raise refuse(entry, f"{span!r}: it ends before it begins")
