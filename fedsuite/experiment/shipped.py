"""The experiment files that come with fedsuite, wherever it was installed from."""

from pathlib import Path

import fedsuite

SIMULATIONS = "simulations"


def simulations() -> Path:
    """Return the folder of experiment files: in a wheel's package, else beside it."""
    package = Path(fedsuite.__file__).resolve().parent
    inside = package / SIMULATIONS
    return inside if inside.is_dir() else package.parent / SIMULATIONS


def find_experiment(path: Path) -> Path:
    """Return the path; fedsuite's own file if there is no folder ``simulations`` here.

    So the commands in README and in the files' comments work in any folder.
    """
    if path.parts[:1] != (SIMULATIONS,) or Path(SIMULATIONS).exists():
        return path
    return simulations().joinpath(*path.parts[1:])
