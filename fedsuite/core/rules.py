"""Rules: which values of keys do not go together, as data.

A rule is declared once. It holds wherever all of its keys are: in an experiment, and in a
constructor that takes them as keywords. Both refuse alike, each in its own spelling.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsuite.core.errors import Refused
from fedsuite.core.keys import Key, Unless, With

Values = Mapping[str, Any]
"""Key to value, None where a constructor does not know it; ``method`` is the name of the
method, or of the strategy's class."""

Condition = With | Unless | Callable[[Values], bool]
"""What holds of values: of one key as data, else by code."""

Words = str | Callable[[Values], str]
"""A clause, or what makes it of the values; ``{local-steps}`` stands for a key's name."""


@dataclass(frozen=True)
class Rule:
    """Values of keys that do not go together.

    Parameters
    ----------
    keys
        The keys that it is about; the value of the first is refused.
    when
        Conditions, all of which hold where the rule refuses; none refuses always.
    why
        Why.
    advice
        What to do.
    idle
        Whether the first key changes nothing beside the others. Its default is then never
        refused, and falls into place where an override takes the effect of a file's value.
    """

    keys: tuple[str, ...]
    when: tuple[Condition, ...]
    why: Words
    advice: Words = ""
    idle: bool = False

    def refuses(self, values: Values, defaults: Values) -> bool:
        """Return whether values are refused; where a key is missing, none are."""
        subject = self.keys[0]
        if any(key not in values for key in self.keys):
            return False
        if self.idle and values[subject] == defaults.get(subject):
            return False
        return all(_holds(condition, values) for condition in self.when)

    def error(self, values: Values) -> Refused:
        """Return the error for refused values."""
        why, advice = (
            text if isinstance(text, str) else text(values)
            for text in (self.why, self.advice)
        )
        known = {key: values[key] for key in self.keys if values[key] is not None}
        return Refused(known, why, advice, idle=self.idle)


def _holds(condition: Condition, values: Values) -> bool:
    if isinstance(condition, With | Unless):
        return condition.met(values)
    return condition(values)


def rule_of_needs(key: Key) -> Rule:
    """Return the rule that a key has no effect where none of its needs is met."""
    advice = " or ".join(need.advice for need in key.needs)
    return Rule(
        (key.name, *dict.fromkeys(need.key for need in key.needs)),
        (lambda values: not any(need.met(values) for need in key.needs),),
        "",
        f"{advice} too, or leave {{{key.name}}} out",
        idle=True,
    )


def check_rules(rules: Iterable[Rule], values: Values, defaults: Values) -> None:
    """Raise the error of the first rule that refuses values.

    Parameters
    ----------
    rules
        The rules.
    values
        Key to value.
    defaults
        Default by key.

    Raises
    ------
    Refused
        Naming the keys, their values, why they do not go together, and what to do.
    """
    for rule in rules:
        if rule.refuses(values, defaults):
            raise rule.error(values)
