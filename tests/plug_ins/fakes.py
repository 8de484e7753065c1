"""Packages that are installed for a test: modules and entry points in some folder."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

from fedsuite.core import plug_ins
from fedsuite.core.registry import METHODS
from fedsuite.data import DATASETS
from fedsuite.experiment import key_catalog
from fedsuite.experiment import plug_ins as experiment_plug_ins
from fedsuite.models import MODELS

PACKAGE = Path(__file__).parent / "package"

EXAMPLE: Mapping[str, Mapping[str, str]] = {
    "fedsuite.methods": {"anchored": "fedsuite_example.strategy:Anchored"},
    "fedsuite.models": {"two-layers": "fedsuite_example.model:TwoLayers"},
    "fedsuite.datasets": {"stripes": "fedsuite_example.data:read"},
}


def write_package(
    folder: Path,
    name: str,
    adds: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str] | None = None,
    version: str = "1.0",
) -> None:
    """Write what pip leaves of a package: its modules, by name, and its metadata."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (about / "METADATA").write_text(text)
    lines = [
        f"[{group}]\n" + "".join(f"{entry} = {code}\n" for entry, code in entries.items())
        for group, entries in adds.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    for module, source in (modules or {}).items():
        (folder / f"{module}.py").write_text(source)


@contextmanager
def installed(*folders: Path) -> Iterator[None]:
    """Make folders importable inside the block, and forget them after it."""
    paths, modules = list(sys.path), set(sys.modules)
    sys.path[:0] = map(str, folders)
    _forget()
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if any(Path(file).is_relative_to(folder) for folder in folders):
                del sys.modules[name]
        _forget()


def _forget() -> None:
    invalidate_caches()
    plug_ins.installed.cache_clear()
    for collected in ("known_keys", "our_keys", "ambiguous_keys", "_ambiguous_of_ours"):
        getattr(key_catalog, collected).cache_clear()
    experiment_plug_ins._digest.cache_clear()
    for registry in (METHODS, MODELS, DATASETS):
        registry._known.clear()


@contextmanager
def example(folder: Path) -> Iterator[None]:
    """Install the example package without pip."""
    write_package(folder, "fedsuite-example", EXAMPLE, version="0.1.0")
    with installed(folder, PACKAGE):
        yield
