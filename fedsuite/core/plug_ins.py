"""Methods, models and data sets that installed packages add by name.

A package names what it adds in its ``pyproject.toml``::

    [project.entry-points."fedsuite.methods"]
    fedmedian = "my_package.strategy:FedMedian"

Nothing of a package is imported before its name is used, or before everything is listed. An
experiment may also name code of one's own as ``module:name``. No message chooses what a
process imports: see :func:`fedsuite.running.node.node_experiment`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Generic, TypeVar

from fedsuite.core.errors import ConfigError, one_line

T = TypeVar("T")

_CODE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def is_code(name: object) -> bool:
    """Return whether a value names code as ``module:name``."""
    return isinstance(name, str) and _CODE.fullmatch(name) is not None


def import_code(code: str) -> object:
    """Import ``module:name``.

    Raises
    ------
    ConfigError
        If it is not there, or its module cannot be imported.
    """
    path, _, name = code.partition(":")
    try:
        module = import_module(path)
    except (Exception, SystemExit) as error:
        # Somebody else's module may raise anything.
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(
            f"{error.name}."
        ):
            raise ConfigError(
                f"there is no module {error.name!r} here: install it where this process "
                "runs, or name its folder, which may hold no fedsuite, in PYTHONPATH"
            ) from None
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(
            f"module {path} cannot be imported ({reason}): mend it"
        ) from error
    if not hasattr(module, name):
        raise ConfigError(f"module {path} has no {name!r}: correct the name")
    code_object: object = getattr(module, name)
    return code_object


@dataclass(frozen=True)
class Addition:
    """A name that an installed package adds.

    Parameters
    ----------
    name
        The name.
    code
        What it stands for, as ``module:name``.
    package, version
        The package as pip knows it.
    """

    name: str
    code: str
    package: str
    version: str

    @property
    def origin(self) -> str:
        """The package and its version, for people."""
        return f"{self.package} {self.version}"


@cache
def installed(group: str) -> Mapping[str, tuple[Addition, ...]]:
    """Return what installed packages add to a group of entry points, by name."""
    # Its parts take a while, which help need not wait for.
    from importlib.metadata import entry_points

    by_name: dict[str, tuple[Addition, ...]] = {}
    for entry in entry_points(group=group):
        package = entry.dist.name if entry.dist else "?"
        version = entry.dist.version if entry.dist else "?"
        addition = Addition(entry.name, entry.value, package, version)
        by_name[entry.name] = (*by_name.get(entry.name, ()), addition)
    return dict(sorted(by_name.items()))


class Registry(Mapping[str, T], Generic[T]):
    """Fedsuite's own entries by name, and those of installed packages.

    Iteration passes over names that cannot be used; :meth:`broken` says why. A name that
    two packages claim cannot be used, fedsuite being one of them.

    Parameters
    ----------
    kind
        What the entries are, for errors.
    group
        Group of entry points.
    ours
        Fedsuite's own entries.
    entry_of
        Makes an entry of a name, its ``module:name``, and the imported object.
    takes_code
        Whether ``module:name`` is a name too. Such an entry is made without an import, with
        None as object.
    elsewhere
        Names that are no entries to what gives the same, in a sentence for errors.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        ours: Mapping[str, T],
        entry_of: Callable[[str, str, object], T],
        *,
        takes_code: bool = False,
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.ours = ours
        self.elsewhere = elsewhere or {}
        self.takes_code = takes_code
        self._group = group
        self._entry_of = entry_of
        self._known: dict[Addition, T | ConfigError] = {}

    # Equal is the same, so that declarations of keys can be hashed.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> T:
        """Return an entry.

        Raises
        ------
        KeyError
            If there is none.
        ConfigError
            If two packages claim the name, or its package cannot be used.
        """
        if self.takes_code and is_code(name):
            return self._entry_of(name, name, None)
        additions = installed(self._group).get(name, ())
        if len(additions) + (name in self.ours) > 1:
            raise self._clash(name)
        if not additions:
            return self.ours[name]
        (addition,) = additions
        if addition not in self._known:
            self._known[addition] = self._loaded(addition)
        entry = self._known[addition]
        if isinstance(entry, ConfigError):
            raise entry
        return entry

    def __contains__(self, name: object) -> bool:
        if self.takes_code and is_code(name):
            return True
        return name in self.ours or name in installed(self._group)

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys((*self.ours, *installed(self._group)))
        return (name for name in names if self._failure(name) is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True

    @property
    def others(self) -> str:
        """The names that are allowed beside fedsuite's own, in words."""
        of_code = ", or module:name of your own" if self.takes_code else ""
        return f", or a name that an installed package adds{of_code}"

    def addition(self, name: str) -> Addition | None:
        """Return what a package adds by a name; None for fedsuite's own and for code."""
        return next(iter(installed(self._group).get(name, ())), None)

    def by_origin(self) -> dict[str, list[str]]:
        """Return the usable names that packages add, by package and version."""
        names: dict[str, list[str]] = {}
        for name in self:
            if addition := self.addition(name):
                names.setdefault(addition.origin, []).append(name)
        return names

    def broken(self) -> dict[str, tuple[str, str]]:
        """Return origin and reason of the names that cannot be used."""
        return {
            name: (", ".join(one.origin for one in additions), str(failure))
            for name, additions in installed(self._group).items()
            if (failure := self._failure(name)) is not None
        }

    def _failure(self, name: str) -> ConfigError | None:
        try:
            self[name]
        except ConfigError as error:
            return error
        return None

    def _clash(self, name: str) -> ConfigError:
        claims = ["fedsuite"] if name in self.ours else []
        claims += [addition.origin for addition in installed(self._group)[name]]
        return ConfigError(
            f"{self.kind} {name!r} is of {' and of '.join(claims)}: uninstall "
            f"{claims[-1].partition(' ')[0]}, or have it take another name"
        )

    def _loaded(self, addition: Addition) -> T | ConfigError:
        """Return the entry of a package, or why it cannot be used."""
        try:
            if not is_code(addition.code) or not _NAME.fullmatch(addition.name):
                raise ConfigError(
                    f"its entry point is {addition.name} = {addition.code!r}: expected a "
                    "name of small letters, digits, dots and dashes, and module:name"
                )
            return self._entry_of(addition.name, addition.code, import_code(addition.code))
        except ConfigError as error:
            return ConfigError(
                f"{self.kind} {addition.name!r} of {addition.origin}: {error}"
            )
