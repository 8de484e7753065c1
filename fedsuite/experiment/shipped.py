"""The experiment files that come with fedsuite, wherever it was installed from."""

from pathlib import Path

import fedsuite

SIMULATIONS = "simulations"


def simulations() -> Path:
    """Return their folder: in the package of a wheel, else beside the package."""
    package = Path(fedsuite.__file__).resolve().parent
    inside = package / SIMULATIONS
    return inside if inside.is_dir() else package.parent / SIMULATIONS


def find_experiment(path: Path) -> Path:
    """Return a file, or the one of that name that comes with fedsuite.

    The latter only for ``simulations/...`` in a working folder without such a folder: the
    commands in README and in the files' comments then work in any place.
    """
    if path.parts[:1] != (SIMULATIONS,) or Path(SIMULATIONS).exists():
        return path
    return simulations().joinpath(*path.parts[1:])
