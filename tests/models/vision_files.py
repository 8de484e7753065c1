"""torchvision's networks in tests, and files of weights, made in place of its own."""

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch

from fedsuite.core.errors import ConfigError
from fedsuite.models import build_model

SMALL = "squeezenet1_1"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALED = (0.3, 0.5, 0.6), (0.2, 0.25, 0.3)
"""Some data set's mean and standard deviation."""


class Weights:
    """Weights of torchvision whose file is one of ours.

    torchvision's enumeration and its loading are the real ones; the address alone is
    another, whose name has the digits of our file's hash.
    """

    def __init__(self, monkeypatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self.checkpoints = folder / "home" / "hub" / "checkpoints"
        self.remote = folder / "remote"
        self.checkpoints.mkdir(parents=True)
        self.remote.mkdir()
        monkeypatch.setenv("TORCH_HOME", str(folder / "home"))

    def put(self, name, state, *, digits=None, at=None):
        """Write a file for a network's default weights; returns these and the file.

        ``at`` is the folder, that of files which are there already unless given.
        """
        scratch = self.remote / "scratch.pth"
        torch.save(state, scratch)
        found = hashlib.sha256(scratch.read_bytes()).hexdigest()[:8]
        file = (at or self.checkpoints) / f"{name}-{digits or found}.pth"
        scratch.rename(file)
        return self.point(name, file.name), file

    def point(self, name, file_name):
        """Have a network's default weights lie at our address under some name."""
        from torchvision.models import get_model_weights

        weights = get_model_weights(name).DEFAULT
        url = (self.remote / file_name).as_uri()
        changed = dataclasses.replace(weights.value, url=url)
        self._monkeypatch.setattr(weights, "_value_", changed)
        return weights


def drawn(name, **options):
    """Return a network of torchvision with 1,000 classes, drawn, in evaluation mode.

    Its running statistics are those of some images: with others what comes in would be
    lost on its way through the deeper networks.
    """
    from torchvision.models import get_model

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(4)
        network = get_model(name, weights=None, **options).eval()
        norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
        if norms:
            network(torch.rand(8, 3, 80, 80))
        return network.eval()


def build(name=SMALL, shape=(3, 32, 32), classes=7, seed=0, **options):
    prefixed = {f"torchvision_{key}": value for key, value in options.items()}
    scaling = {k: v for k, v in options.items() if k == "standardisation"}
    for key in scaling:
        del prefixed[f"torchvision_{key}"]
    return build_model(
        "torchvision", shape, classes, seed, torchvision_model=name, **prefixed, **scaling
    )


def images(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def same_state(first, second):
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def refusal(*arguments, **options):
    """Return the one line that a network is refused with."""
    with pytest.raises(ConfigError) as error:
        build(*arguments, **options)
    text = str(error.value)
    assert "\n" not in text
    return text
