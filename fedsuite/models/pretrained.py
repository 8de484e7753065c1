"""Pre-trained weights of torchvision's networks.

torchvision names a file by the first digits of its SHA-256. torchvision checks the digits
of a download, but not of a file that is there already. This module checks both. A file is
read as weights only, never as pickle, which may run code.
"""

import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from fedsuite.core.errors import ConfigError
from fedsuite.models.torchvision_import import first_line

_HASH = re.compile(r"-([0-9a-f]{8,64})\.")

_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
"""Prefixes of GoogLeNet's and Inception's auxiliary classifiers, used in training only."""

# Older files have dots that module names do not allow: denselayer1.norm.1.weight.
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\.\w+)$")


def load_pretrained(
    network: nn.Module, weights: Any, own: frozenset[str], name: str
) -> None:
    """Load weights into a network, except the arrays ``own``.

    Parameters
    ----------
    network
        Network, loaded in place.
    weights
        Member of the network's enumeration of weights. The file is downloaded into torch's
        folder if missing.
    own
        Names of the arrays to keep: the classifier's.
    name
        Name of the network, for errors.

    Raises
    ------
    ConfigError
        If the file cannot be downloaded, does not match its name, or does not hold this
        network's weights.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(weights.url).path).name
    try:
        if path.exists():
            _check_hash(path)
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        _load(network, state, own)
    except Exception as error:
        # A bad connection, disk or file may raise anything.
        raise ConfigError(
            f"model torchvision: weights {weights.name} of {name}: {_reason(error)}: put "
            f"the file {weights.url} in the folder {path.parent} (TORCH_HOME sets "
            "TORCH_HOME/hub/checkpoints), in place of one that is there"
        ) from error


def _check_hash(path: Path) -> None:
    """Raise ValueError if a file does not match the hash in its name."""
    named = _HASH.search(path.name)
    if named is None:
        return
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(named[1]):
        raise ValueError(f"{path.name} is damaged, its SHA-256 begins with {digest[:8]}")


def _load(network: nn.Module, state: dict[str, Tensor], own: frozenset[str]) -> None:
    """Load the arrays of a file; ``state`` is changed in place to keep its versions."""
    for name in list(state):
        old = _OLD_DENSENET.match(name)
        if name in own or name.startswith(_AUXILIARY):
            del state[name]
        elif old:
            state[old[1] + old[2]] = state.pop(name)
    for name, values in state.items():
        if not bool(values.isfinite().all()):
            raise ValueError(f"not finite in {name}, so they are not for classification")
    result = network.load_state_dict(state, strict=False)
    wrong = [*(set(result.missing_keys) - own), *result.unexpected_keys]
    if wrong:
        raise ValueError(f"the file holds another network's, see {min(wrong)}")


def _reason(error: Exception) -> str:
    """Return an error's reason in a few words."""
    if type(error).__name__ == "UnpicklingError":
        # torch's message advises to load the file as pickle.
        return "the file is damaged or holds more than weights"
    return first_line(error)
