"""Refusal of keys that would have no effect."""

from collections.abc import Collection, Iterable, Mapping

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, Value
from fedsuite.rounds.declaration import MethodDeclaration


def idle_keys(
    values: Mapping[str, Value],
    defaults: Mapping[str, Value],
    keys: Iterable[Key],
    strategy: type[MethodDeclaration],
    overridden: Collection[str] = (),
) -> list[str]:
    """Return the keys of a file that lose their effect by overrides.

    Parameters
    ----------
    values
        Values of the experiment.
    defaults
        Default by key, which is never refused.
    keys
        Declarations of the keys.
    strategy
        Strategy of the experiment's method.
    overridden
        Keys whose values win over a file's; empty without a file.

    Raises
    ------
    ConfigError
        If another key would change nothing in this experiment.
    """
    idle = []
    without_effect = strategy.without_effect(values)
    for key in keys:
        name, value = key.name, values[key.name]
        if value == defaults[name]:
            continue
        start = f"key {name} = {value!r} has no effect with"
        if name in without_effect:
            causes = ["method"]
            reason = (
                f"{start} method {values['method']}: {without_effect[name]}; set "
                f"{defaults[name]!r}, or leave it out"
            )
        elif name == "preset" and not strategy.PAPER:
            causes = ["method"]
            reason = (
                f"{start} method {values['method']}: no default differs from its paper's; "
                "leave it out"
            )
        elif key.needs and not any(need.met(values) for need in key.needs):
            causes = [need.key for need in key.needs]
            lacking = " and ".join(f"{cause} = {values[cause]!r}" for cause in causes)
            advice = " or ".join(need.advice for need in key.needs)
            reason = f"{start} {lacking}: {advice} too, or leave {name} out"
        else:
            continue
        if name in overridden or not set(causes) & set(overridden):
            raise ConfigError(reason)
        idle.append(name)
    return idle


def check_value_needs(values: Mapping[str, Value], keys: Iterable[Key]) -> None:
    """Refuse single values of keys that have no effect beside other values."""
    for key in keys:
        for value, need in key.value_needs:
            if values[key.name] == value and not need.met(values):
                raise ConfigError(
                    f"key {key.name} = {value!r} has no effect with {need.key} = "
                    f"{values[need.key]!r}: {need.advice} too, or another {key.name}"
                )
