"""Completion in the shell: names of methods, keys and data sets, without importing torch.

The declarations of the keys stand beside code that needs torch, which takes seconds. So
their names lie in ``keys.csv`` beside this file, which `make config` writes.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from fedsuite.core.registry import METHODS

NAMES = Path(__file__).with_name("keys.csv")
"""A line per key: its name, its choices with a space between two, what it means."""


@cache
def _keys() -> Mapping[str, tuple[tuple[str, ...], str]]:
    if not NAMES.is_file():
        return {}
    lines = csv.reader(io.StringIO(NAMES.read_text("utf-8"), newline=""))
    return {name: (tuple(choices.split()), help_) for name, choices, help_ in lines}


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin so, those of installed packages too."""
    return [name for name in METHODS if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Return the same for a list of methods with commas, for its last name."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_method(last)]


def complete_setting(incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield ``KEY=`` with its meaning; behind it the key's choices, such as data sets."""
    key, equals, value = incomplete.partition("=")
    if equals:
        choices = complete_method("") if key == "method" else _keys().get(key, ((), ""))[0]
        yield from ((f"{key}={c}", "") for c in choices if c.startswith(value))
        return
    for name, (_, meaning) in _keys().items():
        if name.startswith(key):
            yield f"{name}=", meaning
