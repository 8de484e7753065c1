"""The smallest experiment that does everything, and helpers around it."""

import shutil
from pathlib import Path

from safetensors.numpy import load_file

from fedsuite.messages.versions import exchange_of

SMALL = {
    "model": "linear",
    "num-clients": 4,
    "num-rounds": 1,
    "batch-size": 64,
    "clients-per-round": 2,
    "report": False,
}


def write_experiment(path, **keys):
    """Write the small experiment with other keys (in snake case) as a file."""
    import tomli_w

    values = SMALL | {name.replace("_", "-"): value for name, value in keys.items()}
    path.write_text(tomli_w.dumps(values))
    return path


def final_model(folder):
    """Return the bytes of each array of a run's final model."""
    arrays = load_file(folder / "model.safetensors")
    return {name: (array.shape, array.tobytes()) for name, array in arrays.items()}


def client_states(folder):
    """Return the bytes of each client's newest state, by client, round and exchange."""
    files = sorted(
        (folder / "state").glob("*/*.safetensors"),
        key=lambda path: [int(part) for part in exchange_of(path.stem).split(".")],
    )
    newest = {path.parent.name: path for path in files}
    return {
        f"{client}/{exchange_of(path.stem)}": path.read_bytes()
        for client, path in sorted(newest.items())
    }


def copy_repository(folder):
    """Copy the repository without what was made in it."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "runs", "dist", "build")
    shutil.copytree(Path(__file__).parents[1], folder, symlinks=True, ignore=ignored)
    return folder
