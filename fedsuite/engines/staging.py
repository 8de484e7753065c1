"""Flower apps that are written for one run: a copy of a package, or keys alone."""

import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.own_process import anywhere
from fedsuite.core.plug_ins import import_code
from fedsuite.engines.processes import clean_python_path
from fedsuite.experiment.plug_ins import own_code


def stage_app(
    folder: Path, run_config: Mapping[str, Value], *, package: Path | None = None
) -> Path:
    """Write a Flower app whose code is a copy of a package and whose config is given.

    Parameters
    ----------
    folder
        Folder of the app, which is created.
    run_config
        The run's configuration. It becomes ``[tool.flwr.app.config]``, so that no value has
        to pass a command line.
    package
        Folder of the package, with an ``app`` each in ``server_app.py`` and
        ``client_app.py``; default: this fedsuite.

    Returns
    -------
    Path
        The app's folder, as ``flwr run`` takes it.
    """
    source = package or Path(fedsuite.__file__).parent
    for file in sorted(source.rglob("*.py")):
        if "__pycache__" in file.parts:
            continue
        copy = folder / source.name / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return _write_app(folder, source.name, [f"{source.name}/**/*.py"], run_config)


def check_code(run_config: Mapping[str, Value], package: str = "fedsuite") -> None:
    """Refuse code of one's own that the processes of a staged app would not find.

    They say so themselves, after a minute.

    Parameters
    ----------
    run_config
        The run's configuration.
    package
        Package of the app; no folder with another package of this name is theirs.

    Raises
    ------
    ConfigError
        Naming the module.
    """
    everything = anywhere(os.environ).get("PYTHONPATH", "")
    kept = clean_python_path(everything, package).split(os.pathsep)
    dropped = set(everything.split(os.pathsep)) - set(kept)
    for code in own_code(run_config):
        module = code.partition(":")[0].partition(".")[0]
        if module == "__main__":
            raise ConfigError(
                f"the code {code!r} is of this program or notebook, which no other process "
                "can import: put it into a file of its own"
            )
        spec = find_spec(module)
        if spec is None:
            import_code(code)  # says what to do
        elif places := _folders(spec) & dropped:
            raise ConfigError(
                f"module {module} lies in {min(places)} beside a folder {package}, which "
                f"other processes would take for the app: move {module} to a folder of its "
                "own and name that in PYTHONPATH"
            )


def _folders(spec: ModuleSpec) -> set[str]:
    """Return the folders that a top-level module was found in."""
    parts = list(spec.submodule_search_locations or [spec.origin or ""])
    return {str(Path(part).parent) for part in parts}


def stage_keys(folder: Path, run_config: Mapping[str, Value]) -> Path:
    """Write a Flower app with a run's configuration and without code.

    Server and nodes run their installed fedsuite. The server refuses a node with other code
    at the node's hello.

    Parameters
    ----------
    folder, run_config
        As for :func:`stage_app`.

    Returns
    -------
    Path
        The app's folder, as ``flwr run`` takes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return _write_app(folder, "fedsuite", [], run_config)


def _write_app(
    folder: Path, package: str, include: Sequence[str], run_config: Mapping[str, Value]
) -> Path:
    import tomli_w

    app: dict[str, object] = {
        "publisher": "fedsuite",
        "components": {
            "serverapp": f"{package}.server_app:app",
            "clientapp": f"{package}.client_app:app",
        },
        "config": dict(run_config),
    }
    if include:
        app["fab-include"] = list(include)
    project = {
        "project": {
            "name": package.replace("_", "-"),  # Flower refuses underscores
            "version": "0.0.0",
            "description": "Staged by fedsuite for one run",
            "license": "Apache-2.0",
        },
        "tool": {"flwr": {"app": app}},
    }
    (folder / "pyproject.toml").write_bytes(tomli_w.dumps(project).encode())
    return folder
