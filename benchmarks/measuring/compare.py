"""Judge final models: accuracy over all test rows, and whether bits agree.

    python -m measuring.compare PREPARED MODEL [MODEL ...]

Models are ``.safetensors`` of fedsuite or ``.npz`` of a peer. Prints a JSON object by file:
accuracy, and a hash of the parameters.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from peers.prepared import Prepared, evaluate, make_network
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray]


def read_model(path: Path) -> Arrays:
    """Return the parameters in a file."""
    if path.suffix == ".safetensors":
        return load_file(path)
    with np.load(path) as file:
        return dict(file)


def fingerprint(arrays: Arrays) -> str:
    """Return a hash of names, types, shapes and bits."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}/{array.dtype.str}/{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def judge(prepared: Prepared, path: Path) -> dict[str, object]:
    """Return a model's accuracy and fingerprint."""
    arrays = read_model(path)
    model = make_network(prepared.settings)
    model.load_state_dict({n: torch.from_numpy(np.array(a)) for n, a in arrays.items()})
    rows = prepared.test()
    _, right = evaluate(model, rows)
    return {"accuracy": right / len(rows[1]), "fingerprint": fingerprint(arrays)}


def main() -> None:
    torch.set_num_threads(1)
    prepared, *models = map(Path, sys.argv[1:])
    data = Prepared(prepared)
    print(json.dumps({str(path): judge(data, path) for path in models}))


if __name__ == "__main__":
    main()
