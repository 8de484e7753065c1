"""Tables of the command line: methods, keys, data sets, partitions, health."""

import os
from collections.abc import Sequence
from dataclasses import astuple
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from rich import box
from rich.markup import escape
from rich.table import Table

from fedsuite.core.extras import EXTRA_OF, how_to_install
from fedsuite.core.keys import Key, toml_text
from fedsuite.core.plug_ins import Registry
from fedsuite.core.registry import METHODS, Method, find_method
from fedsuite.data import DATASETS, ClientShift, DatasetSpec, FederatedData
from fedsuite.models import MODELS
from fedsuite.strategies import load_strategy

T = TypeVar("T")

MANY_CLASSES = 12
"""Most classes that a table lists one by one."""

SELECTORS_OF = {"model": ("model", "decomposition"), "data": ("dataset", "partitioner")}
"""Keys, by group, whose values have keys of their own."""


def methods_table() -> Table:
    """Return the table of methods, by family."""
    table = Table("method", "what it does", "own keys", "paper")
    families: dict[str, list[Method]] = {}
    for method in METHODS.values():
        addition = METHODS.addition(method.name)
        family = addition.origin if addition else method.strategy.partition(".")[0]
        families.setdefault(family, []).append(method)
    for family, methods in families.items():
        _add_title(table, family)
        for method in methods:
            strategy = load_strategy(method)
            summary = " ".join((strategy.__doc__ or "").partition("\n\n")[0].split())
            keys = ", ".join(key.name for key in strategy.method_keys())
            table.add_row(*map(escape, (method.name, summary, keys, method.paper)))
    return table


def models_table() -> Table:
    """Return the table of networks and their keys."""
    table = Table("model", "what", "own keys")
    for origin, names in _by_origin(MODELS):
        _add_title(table, origin)
        for name in names:
            keys = ", ".join(key.name for key in MODELS[name].settings.KEYS)
            table.add_row(*map(escape, (name, MODELS[name].description, keys)))
    return table


def broken_table() -> Table | None:
    """Return the table of what installed packages add and cannot be used; None for none."""
    table = Table("package", "name", "cannot be used, because")
    for registry in (METHODS, MODELS, DATASETS):
        for name, (origin, reason) in registry.broken().items():
            table.add_row(*map(escape, (origin, name, reason)))
    return table if table.row_count else None


def _by_origin(registry: Registry[T]) -> list[tuple[str, list[str]]]:
    """Return the usable names by where they come from; fedsuite's own without a title."""
    ours = [name for name in registry if name in registry.ours]
    return [("", ours), *registry.by_origin().items()]


def _add_title(table: Table, title: str) -> None:
    if title:
        table.add_section()
        # Whole, as a package with its version is.
        first = table.columns[0]
        first.min_width = max(first.min_width or 0, len(title))
        table.add_row(f"[bold]{escape(title)}[/bold]")


def needs_table() -> Table:
    """Return the table of what strategies need of any app's clients."""
    by_needs: dict[str, list[str]] = {}
    for method in METHODS.values():
        strategy = load_strategy(method)
        needs = strategy.NEEDS_OF_CLIENT.words
        if needs == f"{strategy.__name__}Client":
            needs = "its own: FedProxClient for FedProx, ..."
        by_needs.setdefault(needs, []).append(strategy.__name__)
    table = Table("needs of clients", "strategies")
    for needs, names in by_needs.items():
        table.add_row(escape(needs), ", ".join(names))
    return table


def method_keys_table(name: str, *, every: bool = False) -> Table:
    """Return the table of a method's keys and changed defaults.

    Parameters
    ----------
    name
        The method; ConfigError if there is none.
    every
        Whether to list the keys of every experiment too.
    """
    from fedsuite.experiment.key_catalog import shared_keys

    strategy = load_strategy(find_method(name))
    table = Table("key", "default", "allowed", "meaning", title=f"{name}: keys")
    changed = [key for key in shared_keys().values() if key.name in strategy.DEFAULTS]
    groups: list[tuple[str, Sequence[Key]]] = [(f"method {name}", strategy.method_keys())]
    elsewhere = strategy.needed_elsewhere()
    more = [f"In another Flower app: {elsewhere}"] if elsewhere else []
    if every:
        groups += _other_groups()
    else:
        groups.append(("keys of every method, with defaults of its own", changed))
        more.append(
            f"`fedsuite methods {name} --all` lists the keys of every experiment too"
        )
    table.caption, table.caption_justify = escape("\n".join(more)), "left"
    for title, keys in groups:
        if keys:
            table.add_section()
            table.add_row(f"[bold]{title}[/bold]")
        for key in keys:
            default = strategy.DEFAULTS.get(key.name, key.default)
            tried = f". Tuning tries {key.search}" if key.search else ""
            paper = strategy.PAPER.get(key.name)
            published = "" if paper is None else f". The paper: {toml_text(paper)}"
            meaning = key.help + published + tried
            cells = (key.name, toml_text(default), key.allowed(), meaning)
            table.add_row(*(escape(cell) for cell in cells))
    return table


def _other_groups() -> list[tuple[str, Sequence[Key]]]:
    """Return titles and keys of all groups but methods."""
    from fedsuite.experiment.key_catalog import keys_of, owners, shared_groups

    shared = shared_groups()
    groups: list[tuple[str, Sequence[Key]]] = []
    for title in ("training", "privacy", "extras", "model", "data", "run"):
        groups.append((title, shared[title]))
        for selector in SELECTORS_OF.get(title, ()):
            groups += [
                (f"{selector} {owner}", keys_of(selector, owner))
                for owner in owners(selector)
            ]
    return groups


def datasets_table() -> Table:
    """Return the table of data sets and their local files."""
    table = Table("dataset", "classes", "input", "files below data-dir", "hub", "what")
    for origin, names in _by_origin(DATASETS):
        _add_title(table, origin)
        for name in names:
            table.add_row(*map(escape, _dataset_cells(DATASETS[name])))
    return table


def _dataset_cells(spec: DatasetSpec) -> tuple[str, ...]:
    if spec.reader or spec.source.READS_FOLDER:
        files = "its own" if spec.reader else "your own"
        return (spec.name, "?", "as its rows", files, "", spec.description)
    shape = " x ".join(str(length) for length in spec.input_shape)
    files = "none: embedded or generated"
    if spec.folder:
        files = ", ".join(f"{spec.folder}/{name}" for name in spec.file_patterns)
    classes = str(spec.num_classes) if spec.labels.has_classes else "none"
    return (spec.name, classes, shape, files, spec.hub_id, spec.description)


def partition_listing(data: FederatedData) -> Table:
    """Return the partition table, one row per client."""
    shown = range(data.num_classes) if data.num_classes <= MANY_CLASSES else range(0)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    held = data.partition
    parts = {"train": held.train, "validation": held.validation, "test": held.test}
    kept = {name: rows for name, rows in parts.items() if rows}
    for heading in ("client", *kept, "classes", *map(str, shown)):
        table.add_column(heading, justify="right", no_wrap=True)
    for client, of_class in enumerate(data.class_counts().tolist()):
        sizes = (len(rows[client]) for rows in kept.values())
        counts = (str(of_class[label] or "·") for label in shown)
        num_classes = sum(count > 0 for count in of_class)
        table.add_row(*map(str, (client, *sizes, num_classes)), *counts)
    return table


def shift_listing(shifts: Sequence[ClientShift]) -> Table:
    """Return the table of measured shifts, one row per client."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    headings = ("squared shift", "test", "variance", "effective size", "distinct rows")
    for heading in ("client", *headings, "label drift", "KL divergence"):
        table.add_column(heading, justify="right")
    for client_id, shift in enumerate(shifts):
        table.add_row(str(client_id), *map(_number, astuple(shift)))
    return table


def doctor_report() -> tuple[Table, str]:
    """Return the report on the installation, and what to mend first, or ""."""
    import torch

    import fedsuite
    from fedsuite.engines.facts import (
        INSTALL_FLOWER,
        PROGRAMS,
        TESTED,
        flower_facts,
        untested,
    )

    facts = flower_facts()
    paths = {name: str(facts[f"{name}-path"]) for name in PROGRAMS}
    missing = [name for name, path in paths.items() if not path]
    folders = sorted({str(Path(path).parent) for path in paths.values() if path})
    wrong = {
        "flwr": "" if facts["flwr-supported"] else INSTALL_FLOWER,
        "torch": "" if facts["torch"] else "install torch",
        "Flower's programs": "install flwr into this environment" if missing else "",
    }
    versions = {
        "fedsuite": f"{fedsuite.__version__}, in {Path(fedsuite.__file__).parent}",
        **{name: str(facts[name]) or "missing" for name in TESTED},
        "Flower's programs": f"missing: {', '.join(missing)}"
        if missing
        else f"in {', '.join(folders)}",
    }
    unknown = untested(facts)
    table = Table("what", "found", "advice")
    for name, value in versions.items():
        # Escaped, because a console takes 'flwr[simulation]' for markup.
        cells = (name, value, wrong.get(name) or unknown.get(name, ""))
        table.add_row(*(escape(cell) for cell in cells))
    there = [package for package in EXTRA_OF if find_spec(package)]
    if there:
        table.add_row("optional packages", ", ".join(there))
    away: dict[str, list[str]] = {}
    for package in EXTRA_OF:
        if package not in there:
            away.setdefault(how_to_install(package), []).append(package)
    for command, packages in away.items():
        table.add_row(", ".join(packages), "–", escape(f"for what needs it: {command}"))
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none: cpu"
    table.add_row("SuperNodes speak", str(facts["transport"]))
    table.add_row("processor cores", str(facts["cpus"]))
    table.add_row("GPU", gpu)
    data = os.environ.get("FEDSUITE_DATA", "")
    table.add_row(
        "FEDSUITE_DATA", escape(data) or "not set", "" if data else "digits need no files"
    )
    return table, next((f"{name}: {words}" for name, words in wrong.items() if words), "")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 or isinstance(value, int) else f"{value:.3g}"
