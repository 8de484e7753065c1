"""Code of an experiment that is not fedsuite's: of installed packages, or one's own."""

import hashlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.plug_ins import Addition, is_code
from fedsuite.core.registry import METHODS
from fedsuite.data.catalog import DATASETS
from fedsuite.models import MODELS
from fedsuite.models.assignment import experiment_networks

ALLOWED_CODE = "allowed-code"
"""Key of a node's configuration: ``module:name`` that runs may name, comma-separated."""

ALLOWED_CODE_VARIABLE = "FEDSUITE_ALLOWED_CODE"
"""The same as an environment variable, for simulations, whose nodes have no operator."""


def additions(values: Mapping[str, Value]) -> list[Addition]:
    """Return the methods, data sets and networks of other packages in an experiment."""
    networks = experiment_networks(values).distinct
    used = [
        METHODS.addition(str(values["method"])),
        DATASETS.addition(str(values["dataset"])),
        *(MODELS.addition(network.name) for network in networks),
    ]
    return list(dict.fromkeys(one for one in used if one is not None))


def own_code(values: Mapping[str, Value]) -> list[str]:
    """Return each ``module:name`` that an experiment names."""
    named = (str(values.get(key, "")) for key in ("model", "dataset"))
    return [name for name in named if is_code(name)]


def check_allowed(values: Mapping[str, Value], allowed: str) -> None:
    """Refuse ``module:name`` that the operator of a node did not allow.

    Parameters
    ----------
    values
        The experiment, which came with a message.
    allowed
        What the operator allows, comma-separated.
    """
    names = {name.strip() for name in allowed.split(",")}
    for code in own_code(values):
        if code not in names:
            raise ConfigError(
                f"the experiment names the code {code!r}, which this node does not import "
                f'for a message: its operator may allow it, {ALLOWED_CODE} = "{code}" in '
                "the node-config, or install a package that adds it by name"
            )


def fingerprint(values: Mapping[str, Value]) -> str:
    """Return packages, versions and hash of code that is not fedsuite's; empty for none.

    Server and nodes compare it, as they compare the hash of fedsuite's source.
    """
    used = additions(values)
    code = [*(addition.code for addition in used), *own_code(values)]
    if not code:
        return ""
    modules = {name.partition(":")[0].partition(".")[0] for name in code}
    names = sorted({addition.origin for addition in used} | set(own_code(values)))
    return f"{', '.join(names)} ({_digest(tuple(sorted(modules)))[:12]})"


@cache
def _digest(modules: tuple[str, ...]) -> str:
    """Return a hash of the Python files of top-level modules."""
    digest = hashlib.sha256()
    for name, source in (file for module in modules for file in _sources(module)):
        digest.update(name.encode())
        digest.update(source)
    return digest.hexdigest()


def _sources(module: str) -> list[tuple[str, bytes]]:
    """Return names and contents of the Python files of a top-level module."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:
        # A notebook or program of one's own, which no other process imports.
        spec = None
    if spec is None:
        return []
    if spec.submodule_search_locations:
        roots = map(Path, spec.submodule_search_locations)
        files = [(root, path) for root in roots for path in sorted(root.rglob("*.py"))]
        return [(p.relative_to(root).as_posix(), p.read_bytes()) for root, p in files]
    if not spec.has_location or spec.origin is None:
        return []
    return [(module, Path(spec.origin).read_bytes())]
