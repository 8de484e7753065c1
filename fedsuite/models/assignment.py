"""Assignment of different networks to clients.

This module needs no torch: experiments are checked and recorded without networks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsuite.core.errors import ConfigError, Refused, nearest
from fedsuite.core.keys import Key, Value, plain_text
from fedsuite.core.rng import numpy_stream
from fedsuite.models import MODELS, model_spec
from fedsuite.models.model_settings import ModelSettings


@dataclass(frozen=True)
class Network:
    """A network of :data:`~fedsuite.models.MODELS` with values of the network's keys.

    Parameters
    ----------
    name
        Name of the network.
    values
        Key name and value, in the order of declaration.
    """

    name: str
    values: tuple[tuple[str, Value], ...] = ()

    @property
    def label(self) -> str:
        """The network's shortest entry of ``client-models``."""
        defaults = {key.name: key.default for key in MODELS[self.name].settings.KEYS}
        settings = (f"{k}={plain_text(v)}" for k, v in self.values if v != defaults[k])
        return ":".join((self.name, *settings))

    @property
    def options(self) -> dict[str, Value]:
        """The values by argument name, for :func:`~fedsuite.models.build_model`."""
        return {name.replace("-", "_"): value for name, value in self.values}


@dataclass(frozen=True)
class Networks:
    """The networks of an experiment, and each client's network.

    Parameters
    ----------
    distinct
        Distinct networks in the order of ``client-models``; a network may have no client.
    of_client
        Index in ``distinct`` of each client's network.
    """

    distinct: tuple[Network, ...]
    of_client: tuple[int, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The networks' labels."""
        return tuple(network.label for network in self.distinct)

    def clients_of(self, index: int) -> tuple[int, ...]:
        """Return the clients with a network."""
        return tuple(k for k, network in enumerate(self.of_client) if network == index)


def experiment_networks(values: Mapping[str, Value]) -> Networks:
    """Return the networks of an experiment's clients.

    Raises
    ------
    ConfigError
        If ``client-models`` is malformed, or does not fit the number of clients.
    """
    num_clients, seed = values["num-clients"], values["seed"]
    assert isinstance(num_clients, int) and isinstance(seed, int)
    settings = ModelSettings.of(values)
    if not settings.client_models:
        name = settings.model
        own = tuple((key.name, values[key.name]) for key in MODELS[name].settings.KEYS)
        return Networks((Network(name, own),), (0,) * num_clients)
    entries = parse_networks(settings.client_models)
    entry_of = assign(len(entries), settings.client_model_assignment, num_clients, seed)
    distinct = tuple(dict.fromkeys(entries))
    return Networks(distinct, tuple(distinct.index(entries[entry]) for entry in entry_of))


def parse_networks(text: str, key: str = "client-models") -> tuple[Network, ...]:
    """Parse comma-separated entries ``NAME`` or ``NAME:key=value:key=value``.

    Parameters
    ----------
    text
        The entries.
    key
        Key of the entries, for the error.

    Raises
    ------
    ConfigError
        If an entry has an unknown network, key or value.
    """
    return tuple(_parse_entry(entry.strip(), key) for entry in text.split(","))


def assign(num_entries: int, rule: str, num_clients: int, seed: int) -> tuple[int, ...]:
    """Return the index of each client's entry.

    Parameters
    ----------
    num_entries
        Number of entries, at least 1.
    rule
        ``random`` draws each client's entry uniformly and independently. ``round-robin``
        gives client k entry k mod ``num_entries``. ``listed`` gives client k entry k.
    num_clients
        Number of clients.
    seed
        The experiment's seed; draws come from the stream ``"client-models"``.

    Raises
    ------
    ConfigError
        If the rule is ``listed`` and there is not one entry per client.
    """
    if rule == "listed":
        if num_entries != num_clients:
            raise Refused(
                {"client-model-assignment": rule, "num-clients": num_clients},
                f"{{client-models}} has {num_entries} entries",
                "list one for each client",
            )
        return tuple(range(num_clients))
    if rule == "round-robin":
        return tuple(client_id % num_entries for client_id in range(num_clients))
    drawn = numpy_stream(seed, "client-models").integers(num_entries, size=num_clients)
    return tuple(drawn.tolist())


def _parse_entry(entry: str, key: str) -> Network:
    name, *settings = (part.strip() for part in entry.split(":"))
    try:
        keys = model_spec(name).settings.KEYS
        options = _parse_settings(name, keys, settings)
    except ConfigError as error:
        raise ConfigError(f"key {key}: entry {entry!r}: {error}", [key]) from None
    return Network(name, tuple((k.name, options.get(k.name, k.default)) for k in keys))


def _parse_settings(
    name: str, keys: Sequence[Key], settings: Sequence[str]
) -> dict[str, Value]:
    known = {key.name: key for key in keys}
    options: dict[str, Value] = {}
    for setting in settings:
        option, sign, value = (part.strip() for part in setting.partition("="))
        if not sign:
            raise ConfigError(f"{setting!r}: expected key=value")
        if option not in known:
            near = nearest(option, known)
            hint = f"; did you mean {near!r}?" if near else ""
            allowed = ", ".join(known) or "none"
            raise ConfigError(f"{name} has no key {option!r}: it takes {allowed}{hint}")
        if option in options:
            raise ConfigError(f"key {option} stands there twice")
        options[option] = known[option].parse_text(value)
    return options
