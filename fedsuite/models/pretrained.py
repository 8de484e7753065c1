"""Pre-trained weights of torchvision's networks, from files that hold nothing else.

torchvision names a file by the first digits of its SHA-256, and checks them as it downloads
the file, but not when the file is there already. Here they are checked both times, and a
file is read as weights alone: never as pickle, which may run what it holds.
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
"""GoogLeNet's and Inception's classifiers on the way, which only their training uses."""

# Older files have a dot where module names allow none: denselayer1.norm.1.weight.
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|conv))\.([12]\.\w+)$")


def load_pretrained(
    network: nn.Module, weights: Any, own: frozenset[str], name: str
) -> None:
    """Load weights into a network, all but some arrays of its own.

    Parameters
    ----------
    network
        Loaded in place.
    weights
        Member of the network's enumeration of weights. Its file is downloaded into
        torch's folder unless it lies there.
    own
        Names of the arrays that stay as they are: the classifier's.
    name
        Name of the network, for errors.

    Raises
    ------
    ConfigError
        In one line with the place that the file belongs in, if it cannot be had, is not
        the one that its name says, or does not hold this network's weights.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(weights.url).path).name
    try:
        if path.exists():
            _check_hash(path)
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        _load(network, state, own)
    except Exception as error:
        # Whatever a bad connection, disk or file makes its reader raise.
        raise ConfigError(
            f"model torchvision: weights {weights.name} of {name}: {_reason(error)}: put "
            f"the file {weights.url} in the folder {path.parent} (TORCH_HOME sets "
            "TORCH_HOME/hub/checkpoints), in place of one that is there"
        ) from error


def _check_hash(path: Path) -> None:
    """Raise ValueError if a file is not the one that its name says."""
    named = _HASH.search(path.name)
    if named is None:
        return
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(named[1]):
        raise ValueError(f"{path.name} is damaged, its SHA-256 begins with {found[:8]}")


def _load(network: nn.Module, state: dict[str, Tensor], own: frozenset[str]) -> None:
    """Load the arrays of a file; changes ``state``, to keep the versions that it bears."""
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
    """Return what is wrong in a few words."""
    if type(error).__name__ == "UnpicklingError":
        # torch's own words advise to load the file as pickle.
        return "the file is damaged or holds more than weights"
    return first_line(error)
