"""Flower apps that are written for one run: a copy of a package, or keys alone."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import fedsuite
from fedsuite.core.keys import Value


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
