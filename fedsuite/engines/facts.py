"""Finds the facts of this machine that decide how runs through Flower work."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Mapping

from fedsuite.engines.flower import fleet_is_grpc, flower_version
from fedsuite.engines.processes import own_script
from fedsuite.workarounds.flower_release import (
    REQUIREMENT,
    SUPPORTED_BELOW,
    SUPPORTED_FROM,
    flower_release,
)

INSTALL_FLOWER = f"install {REQUIREMENT}"
"""Advice where Flower is missing, or of a release that is not supported."""

PROGRAMS = (
    "flwr",
    "flower-superlink",
    "flower-supernode",
    "flower-superexec",
    "flwr-simulation",
    "flwr-serverapp",
    "flwr-clientapp",
)
"""Flower's programs that a run needs."""

TESTED = {
    "system": ("Linux",),
    "python": ("3.11",),
    "flwr": ("1.39", "1.41", "1.42"),
    "torch": ("2.13",),
}
"""What the tests of fedsuite run on; the versions are those of `constraints/`."""


def untested(facts: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return what no test of fedsuite has run on, with what they do run on."""
    return {
        name: f"untested: tests run on {', '.join(versions)}"
        for name, versions in TESTED.items()
        if (value := str(facts[name]))
        and not any(f"{value}.".startswith(f"{version}.") for version in versions)
    }


def flower_facts() -> dict[str, str | int | bool]:
    """Return the facts that decide how runs through Flower work on this machine.

    Returns
    -------
    dict[str, str | int | bool]
        Versions ("" if missing), the system, whether this flwr is supported, the transport
        between SuperNodes and SuperLink, paths of Flower's programs ("" if missing), CPUs
        that this process may use, and threads per process.
    """
    flwr = flower_release()
    parts = flower_version() if flwr else (0, 0)
    facts: dict[str, str | int | bool] = {
        "flwr": flwr,
        "flwr-supported": SUPPORTED_FROM <= parts < SUPPORTED_BELOW,
        "transport": ("gRPC" if fleet_is_grpc() else "HTTP") if flwr else "",
        "torch": _version("torch"),
        "system": platform.system(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        "threads": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    return facts | {f"{name}-path": _find(name) for name in PROGRAMS}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _find(program: str) -> str:
    return own_script(program) or shutil.which(program) or ""
