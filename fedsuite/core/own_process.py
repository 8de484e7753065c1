"""Environment and number of fedsuite's own processes."""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import fedsuite


def environment() -> dict[str, str]:
    """Return this process's environment with one thread and this fedsuite on the path."""
    return with_fedsuite(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def with_fedsuite(values: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds this fedsuite."""
    home = str(Path(fedsuite.__file__).resolve().parents[1])
    # Before the standard library, the installed packages would shadow parts of it.
    if home in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        return dict(values)
    path = os.pathsep.join(filter(None, [home, values.get("PYTHONPATH")]))
    return {**values, "PYTHONPATH": path}


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
