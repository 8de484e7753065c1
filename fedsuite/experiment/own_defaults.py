"""A method's own defaults of shared keys.

Keys of the local work, and keys of the optimiser, describe one thing together. An
experiment that names one key of such a group has named the whole group: the method's own
defaults of the group do not apply. So a file means the same work whatever its method. An
optimiser and its learning rate are never completed from two sources, but refused.
"""

from collections.abc import Mapping, Sequence

from fedsuite.core.errors import Refused
from fedsuite.core.keys import AUTO, Key, Value, toml_text
from fedsuite.core.registry import METHODS
from fedsuite.strategies import load_strategy

LOCAL_WORK = ("local-epochs", "local-steps", "batch-size")
OPTIMISER = ("optimizer", "learning-rate", "learning-rate-decay")
TOGETHER = (LOCAL_WORK, OPTIMISER)
"""Groups of keys that describe one thing."""


def own_defaults(
    method: str, given_values: Mapping[str, object], keys: Mapping[str, Key]
) -> dict[str, Value]:
    """Return the method's own defaults that apply to an experiment.

    Parameters
    ----------
    method
        Name of the method.
    given_values
        Named keys of the experiment with their values; ``"auto"`` names nothing.
    keys
        The keys of every experiment, with the defaults of all methods.

    Raises
    ------
    Refused
        If a learning rate or an optimiser is named alone, and the method's pair and the
        general pair differ.
    """
    strategy = load_strategy(METHODS[method])
    own = dict(strategy.DEFAULTS)
    if given_values.get("preset") == "paper":
        own |= strategy.PAPER
    rate = _completed_rate(method, own, given_values, keys)
    for group in TOGETHER:
        if any(given_values.get(name, AUTO) != AUTO for name in group):
            own = {name: value for name, value in own.items() if name not in group}
    if given_values.get("public-dir"):
        # The default is the size of a held-out part; a folder gives all its rows.
        own.pop("public-size", None)
    return own | rate


def _completed_rate(
    method: str,
    own: Mapping[str, Value],
    given_values: Mapping[str, object],
    keys: Mapping[str, Key],
) -> dict[str, Value]:
    """Return the method's learning rate if its optimiser alone is named."""
    usual = {name: keys[name].default for name in OPTIMISER}
    pair = {**usual, **{name: own[name] for name in OPTIMISER if name in own}}
    named = [name for name in OPTIMISER if given_values.get(name, AUTO) != AUTO]
    if not named:
        return {}
    if "optimizer" not in named:
        if pair["optimizer"] == usual["optimizer"]:
            return {}
        raise Refused(
            {named[0]: given_values[named[0]]},
            f"method {method} has {_words(pair)} by default, others {_words(usual)}",
            "name the {optimizer} too",
        )
    optimizer = keys["optimizer"].parse(given_values["optimizer"])
    if "learning-rate" in named or optimizer == usual["optimizer"]:
        return {}
    if optimizer == pair["optimizer"]:
        return {"learning-rate": pair["learning-rate"]}
    raise Refused(
        {"optimizer": optimizer},
        f"the default rate, {usual['learning-rate']}, is for {usual['optimizer']}",
        "name the {learning-rate} too",
    )


def _words(pair: Mapping[str, Value]) -> str:
    return f"{pair['optimizer']} at {pair['learning-rate']}"


def own_note(
    method: str,
    applied: Mapping[str, Value],
    given_values: Mapping[str, object],
    values: Mapping[str, Value],
    keys: Mapping[str, Key],
) -> str:
    """Return one line on what a method's own defaults change; empty if nothing.

    Parameters
    ----------
    method, given, keys
        As for :func:`own_defaults`.
    applied
        Result of :func:`own_defaults`.
    values
        Values of the whole experiment.
    """
    strategy = load_strategy(METHODS[method])
    unnamed = {name for name in values if given_values.get(name, AUTO) == AUTO}
    brought = [
        name
        for name, value in applied.items()
        if name in unnamed and (name not in keys or keys[name].default != value)
    ]
    left = [
        name
        for name, value in strategy.DEFAULTS.items()
        if name in unnamed - {*applied, *strategy.UNUSED} and values[name] != value
    ]
    unused = [name for name in strategy.UNUSED if name not in unnamed]
    parts = []
    if brought:
        why = ' with preset = "paper"' if given_values.get("preset") == "paper" else ""
        parts.append(f"brings {_listed(brought, applied)}{why}")
    if left:
        parts.append(
            f"leaves out its own {_listed(left, strategy.DEFAULTS)}, as the experiment "
            "describes that itself"
        )
    if unused:
        parts.append(f"makes no use of {', '.join(unused)}")
    return f"method {method} {'; '.join(parts)}" if parts else ""


def _listed(names: Sequence[str], values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} = {toml_text(values[name])}" for name in names)
