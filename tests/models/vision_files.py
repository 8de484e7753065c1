"""Files of pre-trained weights, made here in place of torchvision's."""

import dataclasses
import hashlib
from pathlib import Path

import torch


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
