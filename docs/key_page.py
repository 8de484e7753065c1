"""The page of all keys, grouped, from their declarations; a box above filters its rows."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedsuite.core.keys import Key, toml_text
from fedsuite.core.registry import METHODS
from fedsuite.experiment.key_catalog import (
    SELECTORS,
    keys_of,
    our_keys,
    our_owners,
    shared_groups,
)
from fedsuite.results.tables import markdown_table

MANY = 8
"""Most owners that a row names one by one."""

_TITLES = {
    "run": "Run, rounds and reports",
    "data": "Data",
    "model": "Network",
    "training": "Local training",
    "privacy": "Privacy",
    "extras": "Losses, noise, faults and attacks",
}
"""Title of each group of keys that every experiment has."""

_BEGINNING = """
# All keys

An experiment sets a key in its file, `num-rounds = 20`, or on the command line,
`--set num-rounds=20`. The page has {count} keys.
[Experiments](../how-to/experiments.md) says how a file is read, and
`fedsuite methods NAME --all` prints the keys of one method.

```{{raw}} html
<p><input class="key-filter" type="search" placeholder="Filter: name, meaning or owner"
 aria-label="Filter the keys"></p>
```
"""


def write_keys(path: Path) -> None:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rendered())


def rendered() -> str:
    """Return the page."""
    parts = [_BEGINNING.strip().format(count=len(our_keys()))]
    for group, keys in shared_groups().items():
        parts.append(_section(_TITLES[group], {key: [] for key in keys}))
    for selector in SELECTORS:
        owned: dict[str, dict[Key, list[str]]] = {}
        for owner in our_owners(selector):
            for key in keys_of(selector, owner):
                family = _family(selector, owner)
                group = next((g for g, keys in owned.items() if key in keys), family)
                owned.setdefault(group, {}).setdefault(key, []).append(owner)
        parts += [_section(title, keys) for title, keys in owned.items()]
    return "\n".join(parts)


def _family(selector: str, owner: str) -> str:
    if selector == "method":
        return f"Methods: {METHODS[owner].strategy.partition('.')[0]}"
    return {
        "dataset": "Of one data set",
        "partitioner": "Of one partitioner",
        "model": "Of one network",
        "decomposition": "Filter decomposition",
    }[selector]


def _section(title: str, keys: Mapping[Key, list[str]]) -> str:
    lines = [["key", "default", "allowed", "meaning"]]
    for key, owners in keys.items():
        words = key.help + (f". Of {_named(owners)}" if owners else "")
        lines.append([f"`{key.name}`", f"`{toml_text(key.default)}`", key.allowed(), words])
    return f"## {title}\n\n{markdown_table(lines, range(4))}"


def _named(owners: Iterable[str]) -> str:
    names = [name for name in owners if name != "true"]
    if len(names) > MANY:
        return f"{len(names)} methods"
    return ", ".join(f"`{name}`" for name in names) or "`decomposition = true`"
