"""What a process of our own needs to find this very fedsuite."""

import os
import sysconfig
from pathlib import Path

import fedsuite


def environment() -> dict[str, str]:
    """Return this environment, with one thread, and with this very fedsuite in reach."""
    values = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    home = str(Path(fedsuite.__file__).resolve().parents[1])
    # Before the standard library, the installed packages would shadow parts of it.
    if home not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        others = values.get("PYTHONPATH")
        values["PYTHONPATH"] = os.pathsep.join(filter(None, [home, others]))
    return values
