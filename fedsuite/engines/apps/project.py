"""A Flower app of somebody else: its project file, its run config, its two components."""

import contextlib
import importlib
import os
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsuite.core.errors import ConfigError, RunError, described, nearest, one_line
from fedsuite.core.keys import Value
from fedsuite.core.reading import check_regular
from fedsuite.core.text import read_toml
from fedsuite.workarounds.flower_config import flattened, parsed_run_config

PROJECT = "pyproject.toml"
BUNDLE = ".fab"

_LARGEST_BUNDLE = 1 << 28
_MOST_FILES = 10_000

_Component = TypeVar("_Component", ServerApp, ClientApp)


@dataclass(frozen=True)
class Project:
    """An app's folder, and what its ``pyproject.toml`` says.

    Parameters
    ----------
    folder
        The app's folder.
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
            table = read_toml(path)
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
                near = nearest(name, self.config)
                hint = f"did you mean {near}? " if near else ""
                raise ConfigError(
                    f"--run-config: the app has no {name}: {hint}[tool.flwr.app.config] of "
                    f"its {PROJECT} declares what it has"
                )
        return {**self.config, **given}

    @contextlib.contextmanager
    def own_modules(self) -> Iterator[None]:
        """Import the app's modules from its folder inside the block, and forget them after.

        So another app, or an edited one, can run later in this process. Modules of the same
        names from elsewhere are set aside meanwhile.
        """
        names = {path.stem for path in self.folder.glob("*.py")}
        names |= {path.name for path in self.folder.iterdir() if path.is_dir()}
        # fedsuite's repository is an app too.
        names.discard("fedsuite")
        others = {
            name: module
            for name, module in sys.modules.items()
            if name.partition(".")[0] in names and not self._holds(module)
        }
        known = set(sys.modules) - set(others)
        for name in others:
            del sys.modules[name]
        sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(str(self.folder))
            for name, module in list(sys.modules.items()):
                own = name.partition(".")[0] in names and self._holds(module)
                if own and name not in known:
                    del sys.modules[name]
            sys.modules.update(others)

    def _holds(self, module: object) -> bool:
        """Return whether a module's file lies in the app's folder."""
        file = getattr(module, "__file__", None)
        places = [file] if file else list(getattr(module, "__path__", ()))
        return any(Path(place).is_relative_to(self.folder) for place in places)

    def load(self) -> tuple[ServerApp, ClientApp]:
        """Import both components, inside :meth:`own_modules`.

        Raises
        ------
        RunError
            If a module cannot be imported, or a component is of another type.
        """
        server = _imported(self.server_app, ServerApp, self.folder)
        return server, self.load_client()

    def load_client(self) -> ClientApp:
        """Import the ClientApp alone, as :meth:`load` does."""
        return _imported(self.client_app, ClientApp, self.folder)


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
            check_regular(app)
            with zipfile.ZipFile(app) as bundle:
                entries = bundle.infolist()
                if sum(entry.file_size for entry in entries) > _LARGEST_BUNDLE:
                    raise ConfigError(f"{app} unpacks to more than 256 MiB, no app does")
                if len(entries) > _MOST_FILES:
                    raise ConfigError(f"{app} holds more than {_MOST_FILES:,} files")
                bundle.extractall(name)
        except ConfigError:
            raise
        except Exception as error:
            # What broken archives raise is not to be foreseen: zlib's, struct's, others.
            raise ConfigError(
                f"{app} is no folder and no bundle ({BUNDLE}) of a Flower app: "
                f"{one_line(error)}"
            ) from error
        yield Path(name).resolve()


def _table(outer: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    inner = outer.get(name)
    if not isinstance(inner, dict):
        raise ConfigError(
            f"{path} has no [tool.flwr.app.components]: it describes no Flower app; "
            "scripts with start_server and start_client become one as in "
            "docs/how-to/from_legacy_flower.md"
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
    except (Exception, SystemExit) as error:
        # A module that reads the command line ends the process where it finds another's.
        raise RunError(_failed(error, reference, folder)) from error
    if not isinstance(value, kind):
        raise RunError(f"{reference} is no {kind.__name__}, but a {type(value).__name__}")
    return value


def _missing(error: ModuleNotFoundError, reference: str, folder: Path) -> str:
    missing = str(error.name)
    package = missing.partition(".")[0]
    module = reference.partition(":")[0]
    if f"{module}.".startswith(f"{missing}."):
        return (
            f"{reference}: there is no module {missing} in {folder}: see "
            f"[tool.flwr.app.components] of its {PROJECT}"
        )
    where = line_of(error, folder) or described(error)
    if package == module.partition(".")[0]:
        return (
            f"{reference} cannot be imported: {where}: there is no module {missing} in "
            f"{folder}"
        )
    if package != missing and package in sys.modules:
        return (
            f"{reference} cannot be imported: {where}: the {package} that is installed "
            f"here{_version(package)} has no {missing}: the app is for another version"
        )
    return (
        f"{reference} needs {package}, which is not installed here: install what the app "
        f"depends on (`pip install {os.path.relpath(folder)}`), or that package"
    )


def _version(package: str) -> str:
    """Return the version of a package in brackets, where one of its name is installed."""
    with contextlib.suppress(PackageNotFoundError):
        return f" ({version(package)})"
    return ""


def _failed(error: BaseException, reference: str, folder: Path) -> str:
    """Return why a module could not be imported, by the app's own line where one failed."""
    if where := line_of(error, folder):
        kind = type(error).__name__
        return f"{reference} cannot be imported: {where}: {kind}: {one_line(error)}"
    return f"{reference} cannot be imported: {described(error)}"


def line_of(error: BaseException, folder: Path) -> str:
    """Return the last line of an app's own code on the way to an error; empty for none.

    Where the app's folder holds an environment too, what is installed there is not its own.
    """
    folder = folder.resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file.is_relative_to(folder) and "site-packages" not in file.parts:
            return f"{file.relative_to(folder)}, line {frame.lineno}"
    return ""
