"""What a script measured, kept with the machine and the commit that it was measured on."""

import datetime
import json
import os
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from measuring.arms import BENCHMARKS

PACKAGES = ("torch", "flwr", "ray", "numpy")


def where() -> dict[str, Any]:
    """Return when, on what machine, and with what versions and commit this runs."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        **{name: _version(name) for name in PACKAGES},
    }


def keep(output: Path, results: Mapping[str, Any], table: str) -> None:
    """Write results and their table to a JSON file, and print the table."""
    output.parent.mkdir(parents=True, exist_ok=True)
    kept = {"where": where(), **results, "table": table}
    output.write_text(json.dumps(kept, indent=1) + "\n")
    print(table)


def _commit() -> str:
    command = ["git", "-C", str(BENCHMARKS), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    matches = (re.search(rf"{key}\s*: (.*)", text) for key in ("model name", "cpu family"))
    name, family = (match[1] if match else "?" for match in matches)
    return f"{name}, family {family}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
