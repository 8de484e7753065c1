"""Declaration of experiment keys.

A key is declared once, beside the code that reads it: a method's keys in the strategy file,
a partitioner's keys beside the partitioner. :mod:`fedsuite.experiment.experiment` collects
the declarations, checks experiments, and generates Flower's table in ``pyproject.toml``.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedsuite.core.errors import Refused, nearest
from fedsuite.core.plug_ins import Registry
from fedsuite.core.search import Search
from fedsuite.core.text import escape_taken

Value = bool | int | float | str

AUTO = "auto"
"""Default that the rest of the experiment decides."""


def plain_text(value: object) -> str:
    """Return a value as typed on a command line: TOML text without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_text(value: object) -> str:
    """Return a value as TOML text."""
    return f'"{value}"' if isinstance(value, str) else plain_text(value)


@dataclass(frozen=True)
class With:
    """A key has an effect only with this value of another key."""

    key: str
    value: Value

    def met(self, values: Mapping[str, Value]) -> bool:
        """Return whether an experiment's values meet the condition."""
        return values.get(self.key, self.value) == self.value

    @property
    def advice(self) -> str:
        """Advice for an unmet condition."""
        return f"set {{{self.key}}} = {self.value!r}"


@dataclass(frozen=True)
class Unless:
    """A key has an effect unless another key has this value."""

    key: str
    value: Value

    def met(self, values: Mapping[str, Value]) -> bool:
        """Return whether an experiment's values meet the condition."""
        return self.key not in values or values[self.key] != self.value

    @property
    def advice(self) -> str:
        """Advice for an unmet condition."""
        return f"set another {{{self.key}}}"


@dataclass(frozen=True)
class Key:
    """One key of an experiment.

    Parameters
    ----------
    name
        Kebab-case name in TOML files and in ``--run-config``.
    default
        Default value, whose type is the key's type unless ``kind`` is given.
    help
        One line: meaning, unit, and what the extremes mean.
    choices
        Allowed values of a string key; empty allows any string.
    minimum, maximum
        Inclusive bounds of a number.
    above
        Exclusive lower bound of a number.
    kind
        Type of the key, needed for the default ``"auto"``. Such a key accepts ``"auto"``
        beside values of its type.
    needs
        Conditions on other keys, at least one of which must hold for an effect. If none
        holds, the key accepts only its default.
    search
        Values that ``fedsuite tune`` tries; None leaves the key as it is.
    local
        Whether the key says where or how long a run works, not what it computes.
    words
        What a key of numbers accepts beside them, such as ``"off"`` or ``"median x 3"``; a
        number in it stands for any number.
    path
        For a key that names a file or folder: the environment variable by which each
        machine names its own, or "" if there is none. No node takes the key's value from a
        message. None for other keys.
    """

    name: str
    default: Value
    help: str
    choices: Collection[str] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    kind: type[bool] | type[int] | type[float] | type[str] | None = None
    needs: tuple[With | Unless, ...] = ()
    search: Search | None = None
    local: bool = False
    words: tuple[str, ...] = ()
    path: str | None = None

    @property
    def type(self) -> type:
        """Type of the key: bool, int, float or str."""
        return self.kind if self.kind is not None else type(self.default)

    @property
    def argument(self) -> str:
        """Name of the Python argument that the key sets, such as ``local_steps``."""
        return self.name.replace("-", "_")

    def parse(self, value: object) -> Value:
        """Return ``value`` as the key's type, or raise :class:`Refused`.

        A float key accepts an int, as TOML writers expect. Nothing else is converted. NaN
        and infinities are refused.
        """
        if (value == AUTO and self.default == AUTO) or self._is_word(value):
            assert isinstance(value, str)
            return value
        if self.type is float and isinstance(value, int) and type(value) is not bool:
            value = float(value)
        if type(value) is not self.type:
            raise self.error(value)
        assert isinstance(value, bool | int | float | str)
        if isinstance(value, str) and (words := escape_taken(value)):
            raise Refused({self.name: value}, words)
        if isinstance(value, str) and self.choices and value not in self.choices:
            raise self.error(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(value)
        return value

    def own(self, value: object) -> object:
        """Return what a node takes of a message: its own folder in place of a path."""
        if self.path is None or value == self.default:
            return value
        return AUTO if self.path else self.default

    def parse_text(self, text: str) -> Value:
        """Return the value of a command line's text (``true``, ``3``, ``0.1``, ``mlp``)."""
        if (text == AUTO and self.default == AUTO) or self._is_word(text):
            return text
        if self.type is bool:
            if text not in ("true", "false"):
                raise self.error(text)
            return text == "true"
        try:
            value = self.type(text)
        except ValueError:
            raise self.error(text) from None
        return self.parse(value)

    def allowed(self) -> str:
        """Return the allowed values in words."""
        if self.choices:
            registry = self.choices if isinstance(self.choices, Registry) else None
            # Docstrings say this too, and no import of ours may import a plug-in.
            words = "one of " + ", ".join(registry.ours if registry else self.choices)
            words += registry.others if registry else ""
        else:
            words = {
                bool: "true or false",
                int: "a whole number",
                float: "a number",
                str: "a string",
            }[self.type]
        bounds = [
            f"{sign} {bound:g}"
            for sign, bound in (
                (">=", self.minimum),
                (">", self.above),
                ("<=", self.maximum),
            )
            if bound is not None
        ]
        words = " ".join([words, " and ".join(bounds)]).strip()
        others = [*self.words, *([AUTO] if self.default == AUTO else [])]
        return ", or ".join([words, *(f'"{other}"' for other in others)])

    def error(self, value: object) -> Refused:
        """Return the error for a forbidden ``value``."""
        if isinstance(self.choices, Registry) and value in self.choices.elsewhere:
            assert isinstance(value, str)
            return Refused({self.name: value}, self.choices.elsewhere[value])
        near = nearest(value, self.choices)
        hint = f"did you mean {near!r}? " if near else ""
        return Refused({self.name: value}, f"{hint}expected {self.allowed()}")

    def _is_word(self, value: object) -> bool:
        """Return whether a value is one of the words that stand beside numbers."""
        patterns = (re.sub(r"[0-9]+", r"[0-9]+([.][0-9]+)?", word) for word in self.words)
        return isinstance(value, str) and any(re.fullmatch(p, value) for p in patterns)

    def _check_bounds(self, value: int | float) -> None:
        if (
            not math.isfinite(value)
            or (self.minimum is not None and value < self.minimum)
            or (self.maximum is not None and value > self.maximum)
            or (self.above is not None and value <= self.above)
        ):
            raise self.error(value)
