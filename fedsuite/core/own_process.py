"""Environment, number and command of fedsuite's own processes."""

import os
import shlex
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

import fedsuite

_PLACES = (
    *("FEDSUITE_CACHE", "FEDSUITE_DATA", "FEDSUITE_PUBLIC", "FEDSUITE_RUNS"),
    *("FEDSUITE_STATE", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MLFLOW_TRACKING_URI", "WANDB_DIR", "TMPDIR"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""Variables of files and folders that programs read in a working folder of their own."""

_SQLITE = "sqlite:///"


def environment() -> dict[str, str]:
    """Return this process's environment with one thread and this fedsuite on the path."""
    return with_fedsuite(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def with_fedsuite(values: Mapping[str, str]) -> dict[str, str]:
    """Return :func:`anywhere` of an environment, in which Python finds this fedsuite."""
    rooted = anywhere(values)
    home = str(Path(fedsuite.__file__).resolve().parents[1])
    # Before the standard library, the installed packages would shadow parts of it.
    if home in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        return rooted
    path = os.pathsep.join(filter(None, [home, rooted.get("PYTHONPATH")]))
    return {**rooted, "PYTHONPATH": path}


def anywhere(values: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose paths are absolute, so that any working folder will do.

    In it Python finds all code that this process finds, also where that comes from the
    current folder, from a script's folder or from a notebook's ``sys.path``.
    """
    named = values.get("PYTHONPATH", "")
    entries = named.split(os.pathsep) if named else []
    folders = dict.fromkeys([*_own_code(), *map(os.path.abspath, entries)])
    rooted = {name: _rooted(values[name]) for name in _PLACES if values.get(name)}
    path = {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}
    others = {name: value for name, value in values.items() if name != "PYTHONPATH"}
    return others | rooted | path


def typed() -> str:
    """Return the shell command that this process is."""
    program = Path(sys.argv[0])
    if program.stem == "fedsuite" or program.parts[-2:] == ("fedsuite", "__main__.py"):
        return shlex.join(["fedsuite", *sys.argv[1:]])
    return shlex.join(["python", *sys.orig_argv[1:]])


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _own_code() -> list[str]:
    """Return the folders of ``sys.path`` that another Python would not have by itself."""
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    paths = sysconfig.get_paths()
    usual = {*packages, paths["stdlib"], paths["platstdlib"], paths["scripts"]}
    usual |= {str(Path(sys.executable).parent), *_of_path_files(packages)}
    usual |= {path for path in sys.path if path.endswith((".zip", "lib-dynload"))}
    folders = (os.path.abspath(path) for path in sys.path if path not in usual)
    # No entry of a PYTHONPATH can hold its separator.
    return [folder for folder in folders if os.pathsep not in folder]


def _of_path_files(packages: Iterable[str]) -> set[str]:
    """Return the folders that files in the packages' folders add, as pip's editable do."""
    return {
        os.path.join(file.parent, line.rstrip())
        for folder in packages
        for file in Path(folder).glob("*.pth")
        for line in file.read_text("utf-8", errors="replace").splitlines()
    }


def _rooted(value: str) -> str:
    """Return the value of a variable with an absolute path."""
    if value.startswith(_SQLITE):
        return _SQLITE + os.path.abspath(value.removeprefix(_SQLITE))
    if "://" in value or value == "databricks":  # MLflow's addresses
        return value
    return os.path.abspath(os.path.expanduser(value))
