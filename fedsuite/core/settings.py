"""One declaration per key: a typed field from which all else follows.

    class FedProx(FedAvg):
        proximal_mu: float = key(default=0.01, help="weight mu", minimum=0.0, told="train")

That line declares the key ``proximal-mu`` of experiments, the keyword ``proximal_mu`` of
the constructor, the check in both, the paragraph of the docstring, and what clients are
told. A subclass that writes ``proximal_mu: float = 0.1`` changes the default alone.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    overload,
)

from fedsuite.core.errors import Refused
from fedsuite.core.keys import AUTO, Key, Unless, Value, With
from fedsuite.core.plug_ins import Registry
from fedsuite.core.rules import Rule, check_rules, rule_of_needs
from fedsuite.core.search import Search

T = TypeVar("T")

_KEY, _HELP, _TOLD, _PART = "key", "help", "told", "part"
_WIDTH = 88


def key(
    *,
    default: T,
    help: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Iterable[str] = (),
    needs: tuple[With | Unless, ...] = (),
    local: bool = False,
    told: str = "",
    search: Search | None = None,
    words: tuple[str, ...] = (),
    path: str | None = None,
    init: Literal[True] = True,
) -> T:
    """Declare a field that experiments may set.

    Parameters
    ----------
    default
        Default value. A :class:`~typing.Literal` annotation names the choices of a string;
        ``T | Literal["auto"]`` allows ``"auto"`` beside values of T.
    help
        One line: meaning, unit, and what the extremes mean. Where a subclass leaves it
        out, the parent's declaration holds but for what is given.
    minimum, maximum
        Inclusive bounds of a number.
    above
        Exclusive lower bound of a number.
    choices
        Allowed strings where a table holds them and no annotation can.
    needs
        Conditions on other keys, at least one of which must hold for an effect.
    local
        Whether the key says where or how long a run works, not what it computes: a run may
        be resumed with another value.
    told
        Types of the messages that carry the value to clients, with spaces between them;
        empty tells nobody.
    search
        Values that ``fedsuite tune`` tries; None leaves the key as it is.
    words
        What ``float | str`` allows beside numbers; a number in a word is any number.
    path
        For a file or folder: the variable by which each machine names its own; "" if there
        is none.
    """
    spec: dict[str, Any] = {"minimum": minimum, "maximum": maximum, "above": above}
    spec |= {"needs": needs, "search": search, "words": words}
    if choices:
        # A registry is not read before a value is.
        spec["choices"] = choices if isinstance(choices, Registry) else tuple(choices)
    spec |= {"local": local, "path": path}
    entry: T = field(default=default, metadata={_KEY: spec, _HELP: help, _TOLD: told})
    return entry


@overload
def given(*, default: T, help: str, told: str = "", init: Literal[True] = True) -> T: ...
@overload
def given(
    *, default_factory: Callable[[], T], help: str, init: Literal[True] = True
) -> T: ...
def given(
    *,
    help: str,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    told: str = "",
    init: Literal[True] = True,
) -> Any:
    """Declare a keyword of the constructor that experiments do not set."""
    metadata = {_HELP: help, _TOLD: told}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def part(*, help: str, init: Literal[True] = True) -> Any:
    """Declare a keyword without default, which a run fills with its part of that name.

    The names are those of :class:`~fedsuite.running.server_parts.ServerParts`.
    """
    return field(metadata={_HELP: help, _PART: True})


def help_of(member: Field[Any]) -> str:
    """Return the text of a field, empty where it has none."""
    return str(member.metadata.get(_HELP, ""))


def state(*, default_factory: Callable[[], T], init: Literal[False] = False) -> T:
    """Declare an attribute that starts anew in each object and is no keyword."""
    entry: T = field(init=init, default_factory=default_factory)
    return entry


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _inherits_made(cls: type) -> bool:
    """Return whether no parent up to the next generated constructor wrote its own."""
    nearest = next(parent for parent in cls.__mro__ if "__init__" in vars(parent))
    return nearest is object or "_MADE" in vars(nearest)


def _own_fields(cls: type) -> tuple[str, ...]:
    """Return a class's annotated fields; a bare default keeps the parent's text.

    A class attribute of a parent's field is another default, with or without annotation.
    """
    bare = [
        name
        for name, value in vars(cls).items()
        if name not in inspect.get_annotations(cls)
        and not hasattr(value, "__get__")
        and _inherited(cls, name) is not None
    ]
    for name in bare:
        cls.__annotations__[name] = cast(Field[Any], _inherited(cls, name)).type
    hints = inspect.get_annotations(cls).items()
    annotations = [
        name for name, hint in hints if get_origin(hint) is not cast(object, ClassVar)
    ]
    for name in annotations:
        before = _inherited(cls, name)
        value = vars(cls).get(name, MISSING)
        if before is None:
            continue
        if isinstance(value, Field):
            if value.metadata.get(_HELP) == "":
                setattr(cls, name, _merged(before, value))
        elif value is not MISSING:
            setattr(cls, name, field(default=value, metadata=before.metadata))
    return tuple(annotations)


def _merged(before: Field[Any], changed: Field[Any]) -> Any:
    """Return a parent's field with what a subclass says of it anew."""
    changes = {name: value for name, value in changed.metadata[_KEY].items() if value}
    messages = changed.metadata[_TOLD] or before.metadata[_TOLD]
    parts = {_KEY: {**before.metadata[_KEY], **changes}, _TOLD: messages}
    return field(default=changed.default, metadata={**before.metadata, **parts})


def _inherited(cls: type, name: str) -> Field[Any] | None:
    for parent in cls.__mro__[1:]:
        entry: Field[Any] | None = vars(parent).get("__dataclass_fields__", {}).get(name)
        if entry is not None:
            return entry
    return None


def _keys_of(declared: Mapping[str, Field[Any]]) -> tuple[Key, ...]:
    return tuple(
        Key(
            _kebab(name),
            cast(Value, member.default),
            member.metadata[_HELP],
            **_kind(member.type, member.default) | member.metadata[_KEY],
        )
        for name, member in declared.items()
        if _KEY in member.metadata
    )


def _kind(hint: Any, default: object) -> dict[str, Any]:
    """Return an annotation's type and choices."""
    if get_origin(hint) in (Union, UnionType):
        # The words beside numbers are strings.
        hints = [h for h in get_args(hint) if get_args(h) != (AUTO,) and h is not str]
        (hint,) = hints
    if get_origin(hint) is Literal:
        choices = tuple(c for c in get_args(hint) if c != AUTO)
        return {"choices": choices, "kind": str if default == AUTO else None}
    return {"kind": hint} if default == AUTO else {}


def _documented(cls: type, own: tuple[str, ...], declared: Mapping[str, Field[Any]]) -> str:
    """Return a class's docstring with its keywords as a numpydoc section."""
    text = inspect.cleandoc(vars(cls).get("__doc__") or "")
    if text.startswith(f"{cls.__name__}("):
        # dataclass sets this text where there is no docstring.
        text = ""
    keys = {k.argument: k for k in cls.KEYS}  # type: ignore[attr-defined]
    described = {n: f for n, f in declared.items() if _HELP in f.metadata}
    sections = {
        "Parameters": {n: f for n, f in described.items() if n in own},
        "Other Parameters": {n: f for n, f in described.items() if n not in own},
    }
    for title, members in sections.items():
        if members:
            entries = [_entry(member, keys.get(name)) for name, member in members.items()]
            text = "\n".join([text, "", title, "-" * len(title), *entries])
    return text.strip()


def _entry(member: Field[Any], known: Key | None) -> str:
    """Return the paragraph of one keyword."""
    hint = (
        member.type
        if isinstance(member.type, str)
        else inspect.formatannotation(member.type)
    )
    kind = known.allowed() if known else hint.replace("typing.", "")
    default = "" if member.default is MISSING else f", default {member.default!r}"
    body = textwrap.fill(
        member.metadata[_HELP], _WIDTH, initial_indent="    ", subsequent_indent="    "
    )
    return f"{member.name} : {kind}{default}\n{body}"


@dataclass_transform(kw_only_default=True, field_specifiers=(key, given, part, state))
class Declared:
    """A class whose constructor, keys and docs are made from its annotated fields.

    It may be of any kind, such as a strategy; :class:`Settings` are frozen ones.
    A subclass may have a constructor of its own, which calls ``super().__init__``.

    Attributes
    ----------
    KEYS
        The keys of experiments that the class and its parents declare.
    PARTS
        The keywords that a run fills; see :func:`part`.
    RULES
        What a class's own body says of keys that do not go together, beside its parents.
    """

    KEYS: ClassVar[tuple[Key, ...]] = ()
    RULES: ClassVar[tuple[Rule, ...]] = ()
    PARTS: ClassVar[frozenset[str]] = frozenset()
    _TOLD: ClassVar[Mapping[str, str]] = {}
    _FROZEN: ClassVar[bool] = False
    _MADE: ClassVar[bool]

    def __init_subclass__(cls, frozen: bool = False) -> None:
        super().__init_subclass__()
        frozen = cls._FROZEN = frozen or cls._FROZEN
        own, makes_init = _own_fields(cls), _inherits_made(cls)
        lost = [name for name in own if isinstance(vars(cls).get(name), Field)]
        if lost and not makes_init and "__init__" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} declares {', '.join(lost)} below a parent with a "
                "constructor of its own: write one here too"
            )
        dataclass(init=makes_init, kw_only=True, eq=frozen, repr=frozen, frozen=frozen)(cls)
        if makes_init:
            cls._MADE = True
        declared = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        cls.KEYS = _keys_of(declared)
        cls.PARTS = frozenset(n for n, f in declared.items() if _PART in f.metadata)
        cls._TOLD = {
            _kebab(name): f.metadata[_TOLD]
            for name, f in declared.items()
            if f.metadata.get(_TOLD)
        }
        cls.__doc__ = _documented(cls, own, declared)

    @classmethod
    def of(cls, values: Mapping[str, Value], **parts: Any) -> Self:
        """Return the object of an experiment's values; keys left out have their default.

        Parameters
        ----------
        values
            Kebab-case key to value; other keys are ignored.
        **parts
            Keywords that are no keys.

        Raises
        ------
        ConfigError
            Naming the key, the value, and what is allowed.
        """
        parsed = {k.argument: k.parse(values.get(k.name, k.default)) for k in cls.KEYS}
        return cls(**parsed, **parts)

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """Return the rules of the class's keys: their needs, and all :attr:`RULES`."""
        of_classes = (vars(parent).get("RULES", ()) for parent in reversed(cls.__mro__))
        needs = (rule_of_needs(key) for key in cls.KEYS if key.needs)
        return (*needs, *(rule for rules in of_classes for rule in rules))

    def values(self) -> dict[str, Any]:
        """Return the values by key, as the rules read them."""
        attributes = vars(self)
        return {
            key.name: attributes[key.argument]
            for key in self.KEYS
            if key.argument in attributes
        }

    def unchanged(self) -> Mapping[str, Any]:
        """Return the default of each key, by name."""
        return {declared.name: declared.default for declared in self.KEYS}

    def __post_init__(self) -> None:
        """Check each key, and the rules; an overriding method calls this method first.

        Raises
        ------
        Refused
            If a value is one that the key forbids, or two do not go together.
        """
        try:
            for declared in self.KEYS:
                name = declared.argument
                if name in vars(self):
                    object.__setattr__(self, name, declared.parse(getattr(self, name)))
            check_rules(self.rules(), self.values(), self.unchanged())
        except Refused as refused:
            refused.in_python = True
            raise

    def told(self, message_type: str) -> dict[str, Value]:
        """Return the values by key that messages of a type carry to clients."""
        return {
            name: getattr(self, name.replace("-", "_"))
            for name, kind in self._TOLD.items()
            if message_type in kind.split()
        }


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(key, given, part, state)
)
class Settings(Declared, frozen=True):
    """Keys that belong together, such as those of local training, as one frozen object."""
