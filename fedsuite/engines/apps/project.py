"""A Flower app of somebody else: its project file, its run config, its two components."""

import contextlib
import difflib
import importlib
import os
import sys
import tempfile
import tomllib
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsuite.core.errors import ConfigError, RunError, described, one_line
from fedsuite.core.keys import Value
from fedsuite.workarounds.flower_config import flattened, parsed_run_config

PROJECT = "pyproject.toml"
BUNDLE = ".fab"

_LARGEST_BUNDLE = 1 << 28

_Component = TypeVar("_Component", ServerApp, ClientApp)


@dataclass(frozen=True)
class Project:
    """An app's folder, and what its ``pyproject.toml`` says.

    Parameters
    ----------
    folder
        The app's folder, which is put on ``sys.path``.
    server_app, client_app
        Where the components are, such as ``my_app.server_app:app``.
    config
        The run config of the project file, flat, with dots between nested names.
    num_supernodes
        Number of nodes that the project file names; 0 for none.
    """

    folder: Path
    server_app: str
    client_app: str
    config: Mapping[str, Value]
    num_supernodes: int = 0

    @classmethod
    def read(cls, folder: Path) -> "Project":
        """Read an app's project file.

        Raises
        ------
        ConfigError
            If there is none, or it describes no Flower app.
        """
        path = folder / PROJECT
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise ConfigError(
                f"{folder} holds no {PROJECT}: give the folder of a Flower app"
            ) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {one_line(error)}") from error
        flower = _table(_table(table, "tool", path), "flwr", path)
        app = _table(flower, "app", path)
        components = _table(app, "components", path)
        for name in ("serverapp", "clientapp"):
            if not isinstance(components.get(name), str):
                raise ConfigError(
                    f"{path}: [tool.flwr.app.components] names no {name}: write "
                    f'{name} = "package.module:app"'
                )
        try:
            config = flattened(app.get("config") or {})
        except ValueError as error:
            raise ConfigError(
                f"{path}: [tool.flwr.app.config]: {one_line(error)}"
            ) from error
        return cls(
            folder,
            components["serverapp"],
            components["clientapp"],
            config,
            _num_supernodes(flower),
        )

    def run_config(self, overrides: str | Path | Mapping[str, Value]) -> dict[str, Value]:
        """Return the run config with overrides in Flower's syntax.

        Parameters
        ----------
        overrides
            ``"lr=0.1 name='a b'"``, the path of a TOML file, or names and values.

        Raises
        ------
        ConfigError
            If the syntax is not Flower's, or the app has no such name.
        """
        given = flat_overrides(overrides)
        for name in given:
            if name not in self.config:
                near = difflib.get_close_matches(name, list(self.config), 1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise ConfigError(
                    f"--run-config: the app has no {name}: {hint}[tool.flwr.app.config] of "
                    f"its {PROJECT} declares what it has"
                )
        return {**self.config, **given}

    def load(self) -> tuple[ServerApp, ClientApp]:
        """Import both components.

        Raises
        ------
        RunError
            If a module cannot be imported, or a component is of another type.
        """
        return self._imported(self.server_app, ServerApp), self.load_client()

    def load_client(self) -> ClientApp:
        """Import the ClientApp alone, as :meth:`load` does."""
        return self._imported(self.client_app, ClientApp)

    def _imported(self, reference: str, kind: type[_Component]) -> _Component:
        # It stays there: an app may import more of itself while it runs.
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        return _imported(reference, kind, self.folder)


def flat_overrides(overrides: str | Path | Mapping[str, Value]) -> dict[str, Value]:
    """Return overrides of a run config by name, with dots between nested names."""
    try:
        if isinstance(overrides, Mapping):
            return flattened(overrides)
        return parsed_run_config(str(overrides))
    except (ValueError, OSError) as error:
        raise ConfigError(f"--run-config: {one_line(error)}") from error


@contextlib.contextmanager
def opened(app: Path) -> Iterator[Path]:
    """Give the folder of an app, which a bundle is unpacked into for the time.

    Raises
    ------
    ConfigError
        If there is nothing of that name, or the bundle cannot be read.
    """
    if app.is_dir():
        yield app.resolve()
        return
    if not app.exists():
        raise ConfigError(
            f"there is no {app}: give the folder of a Flower app, or a bundle"
        )
    with tempfile.TemporaryDirectory(prefix="fedsuite-app-") as name:
        try:
            with zipfile.ZipFile(app) as bundle:
                if sum(entry.file_size for entry in bundle.infolist()) > _LARGEST_BUNDLE:
                    raise ConfigError(f"{app} unpacks to more than 256 MiB, no app does")
                bundle.extractall(name)
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"{app} is no folder and no bundle ({BUNDLE}) of a Flower app: "
                f"{one_line(error)}"
            ) from error
        yield Path(name).resolve()


def _table(outer: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    inner = outer.get(name)
    if not isinstance(inner, dict):
        raise ConfigError(
            f"{path} has no [tool.flwr.app.components]: it describes no Flower app"
        )
    return inner


def _num_supernodes(flower: Mapping[str, Any]) -> int:
    """Return the number of nodes of the default federation, where the file has one."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        federations = flower.get("federations") or {}
        default = federations.get(federations.get("default", "local-simulation")) or {}
        return int((default.get("options") or {}).get("num-supernodes", 0))
    return 0


def _imported(reference: str, kind: type[_Component], folder: Path) -> _Component:
    module_name, _, attributes = reference.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
    except ModuleNotFoundError as error:
        raise RunError(_missing(error, reference, folder)) from error
    except AttributeError as error:
        if traceback.extract_tb(error.__traceback__)[-1].filename != __file__:
            raise RunError(_failed(error, reference, folder)) from error
        raise RunError(
            f"{reference}: the module has no {attributes!r}: name the {kind.__name__} that "
            f"it defines in {folder / PROJECT}"
        ) from error
    except Exception as error:
        raise RunError(_failed(error, reference, folder)) from error
    if not isinstance(value, kind):
        raise RunError(f"{reference} is no {kind.__name__}, but a {type(value).__name__}")
    return value


def _missing(error: ModuleNotFoundError, reference: str, folder: Path) -> str:
    package = str(error.name).partition(".")[0]
    module = reference.partition(":")[0]
    if package == module.partition(".")[0]:
        return (
            f"{reference}: there is no module {error.name} in {folder}: see "
            f"[tool.flwr.app.components] of its {PROJECT}"
        )
    return (
        f"{reference} needs {package}, which is not installed here: install what the app "
        f"depends on (`pip install {os.path.relpath(folder)}`), or that package"
    )


def _failed(error: BaseException, reference: str, folder: Path) -> str:
    """Return why a module could not be imported, by the app's own line where one failed."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(folder):
            where = f"{Path(frame.filename).relative_to(folder)}, line {frame.lineno}"
            kind = type(error).__name__
            return f"{reference} cannot be imported: {where}: {kind}: {one_line(error)}"
    return f"{reference} cannot be imported: {described(error)}"
