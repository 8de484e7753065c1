"""What tests of torchvision's networks need: torchvision, and files of weights."""

import pytest

from tests.models.vision_files import Weights


@pytest.fixture
def torchvision():
    return pytest.importorskip("torchvision")


@pytest.fixture
def files(torchvision, monkeypatch, tmp_path):
    return Weights(monkeypatch, tmp_path)
