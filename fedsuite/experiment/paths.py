"""The keys that name files and folders: absolute, or each machine's own."""

import os
from collections.abc import Mapping

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Key, Value
from fedsuite.experiment.key_catalog import shared_keys


def path_keys() -> list[Key]:
    """Return the keys of every experiment that name a file or folder."""
    return [key for key in shared_keys().values() if key.path is not None]


def absolute_paths(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the paths of an experiment, absolute, by key."""
    return {name: _absolute(path) for name, path in _named(values).items()}


def places(values: Mapping[str, Value]) -> dict[str, str]:
    """Return the folders that the nodes of a run get, by environment variable."""
    variables = {key.name: key.path for key in path_keys() if key.path}
    return {
        variables[name]: _absolute(path)
        for name, path in _named(values).items()
        if name in variables
    }


def refuse_relative_paths(values: Mapping[str, Value]) -> None:
    """Refuse paths that mean another folder where the experiment's ServerApp runs.

    Raises
    ------
    ConfigError
        Naming the key.
    """
    for name, path in _named(values).items():
        if not os.path.isabs(path):
            raise ConfigError(
                f"key {name} = {path!r}: expected an absolute path under `flwr run` and "
                "`deploy run`, because the ServerApp runs in the SuperLink's folder"
            )
    if values["site-dirs"]:
        raise ConfigError(
            "key site-dirs rehearses in the local engine: leave it out, and name each "
            "node's data in its node-config"
        )


def _named(values: Mapping[str, Value]) -> dict[str, str]:
    """Return the paths that an experiment names, by key."""
    paths = {key.name: str(values.get(key.name, key.default)) for key in path_keys()}
    return {name: path for name, path in paths.items() if path not in ("", AUTO)}


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
