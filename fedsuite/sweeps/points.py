"""Points of a sweep, and what they share."""

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import Value, plain_text
from fedsuite.core.text import read_toml
from fedsuite.experiment.experiment import Experiment, parse_assignment
from fedsuite.experiment.key_catalog import is_default, known_keys, local_keys

BASE = "base.toml"
"""File of what all runs of a sweep share, which shows that a folder is a sweep's."""

OWN_KEYS = frozenset({"seed", "run-name", "output-dir", "resume"})
"""Keys that a sweep sets itself per run."""

_LONGEST_NAME = 100
_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Parameters
    ----------
    settings
        Values of the swept keys, sorted by key.
    seed
        Seed of the run.
    fingerprint
        Fingerprint of the whole experiment.
    note
        Changes by the method's own defaults, in one line.
    title
        Name of the run's folder; empty makes one of settings and seed.
    """

    settings: tuple[tuple[str, Value], ...]
    seed: int
    fingerprint: str
    note: str = ""
    title: str = ""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.title or point_name(dict(self.settings), self.seed)


def parse_grid(grid: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Parse ``key=a,b,c`` arguments into typed values, sorted by key.

    Raises
    ------
    ConfigError
        If a key is unknown, given twice or not to be swept, or a value is forbidden or
        given twice.
    """
    parsed: dict[str, tuple[Value, ...]] = {}
    for text in grid:
        name, sign, values = text.partition("=")
        if not sign:
            raise ConfigError(f"--grid {text!r}: expected key=a,b,c")
        if name == "seed":
            raise ConfigError("--grid seed: give the number of seeds by --seeds")
        if name in local_keys():
            raise ConfigError(
                f"--grid {name}: the key says where or how long a run works, not what it "
                "computes, and cannot be swept"
            )
        if name in parsed:
            raise ConfigError(f"--grid {name} is given twice: list all its values in one")
        typed = [parse_assignment(f"{name}={value.strip()}") for value in values.split(",")]
        parsed[name] = tuple(value for _, value in typed)
        repeated = [v for i, v in enumerate(parsed[name]) if v in parsed[name][:i]]
        if repeated:
            raise ConfigError(f"--grid {text!r}: value {repeated[0]} is given twice")
    return dict(sorted(parsed.items()))


def make_points(
    base: Mapping[str, object], grid: Sequence[str], seeds: Iterable[int]
) -> tuple[Point, ...]:
    """Return every combination of grid values and seeds, each a valid experiment.

    Raises
    ------
    ConfigError
        If a combination cannot be run.
    """
    values = parse_grid(grid)
    points = []
    for combination in itertools.product(*values.values()):
        settings = tuple(zip(values, combination, strict=True))
        for seed in seeds:
            point_values = {**base, **dict(settings), "seed": seed}
            try:
                experiment = Experiment.from_values(point_values, tuple(values))
            except ConfigError as error:
                if not error.keys & set(values):
                    raise
                words = ", ".join(f"{name}={value}" for name, value in settings)
                raise ConfigError(f"{words}: {error}", error.keys) from None
            points.append(Point(settings, seed, experiment.fingerprint, experiment.note))
    return tuple(points)


def point_name(settings: Mapping[str, Value], seed: int) -> str:
    """Return the run name of a point; a hash stands for replaced or cut characters."""
    texts = [f"{name}-{plain_text(value)}" for name, value in sorted(settings.items())]
    plain = "_".join([*texts, f"s{seed}"])
    safe = _ALLOWED.sub("-", plain)
    if safe == plain and len(safe) <= _LONGEST_NAME:
        return safe
    digest = hashlib.sha256(plain.encode()).hexdigest()[:8]
    return f"{safe[: _LONGEST_NAME - 20]}_{digest}_s{seed}"


def shared_values(folder: Path, base: Mapping[str, Value]) -> dict[str, Value]:
    """Return what all runs of a sweep's folder share; RunError if another sweep's is it."""
    shared = {name: value for name, value in base.items() if name not in OWN_KEYS}
    path = folder / BASE
    try:
        before = read_toml(path)
    except FileNotFoundError:
        return shared
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}: mend it, or choose another --output") from error
    if unknown := sorted(set(before) - set(known_keys())):
        raise RunError(
            f"{path}: this fedsuite has no key {unknown[0]}: go on with the fedsuite that "
            "wrote it, or choose another --output"
        )
    _check_same(folder, before, shared)
    return shared


def _check_same(folder: Path, old: Mapping[str, Value], new: Mapping[str, Value]) -> None:
    before, after = _decisive(old), _decisive(new)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            there, here = (
                repr(part[name]) if name in part else "not set" for part in (before, after)
            )
            raise RunError(
                f"{folder} holds a sweep of another experiment: key {name} is {there} "
                f"there and {here} here; choose another --output"
            )


def _decisive(base: Mapping[str, Value]) -> dict[str, Value]:
    """Return a base's keys that decide results, num-rounds and public-dir among them."""
    ignored = local_keys() - {"num-rounds", "public-dir"}
    return {k: v for k, v in base.items() if k not in ignored and not is_default(k, v)}
