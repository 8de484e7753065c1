"""Pictures in folders of their classes, of whatever mode they were saved in."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedsuite
from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.keys import Value
from fedsuite.data.federated import ClientData
from fedsuite.data.site import Site
from fedsuite.data.site_federation import federated_spec
from tests.data.site_files import load_site_data

KEYS: dict[str, Value] = {
    "dataset": "own-pictures",
    "picture-classes": "cat, dog, bird",
    "picture-size": 8,
    "picture-colours": "grey",
}


def save(path: Path, brightness: float, mode: str = "L") -> None:
    """Write a picture with a left half of a brightness of 0 to 1, and a black right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    depth, dtype = (65535, np.uint16) if mode == "I;16" else (255, np.uint8)
    pixels = np.zeros((8, 8), dtype)
    pixels[:, :4] = round(brightness * depth)
    image = Image.fromarray(pixels)
    image.save(path) if mode in ("L", "I;16") else image.convert(mode).save(path)


def read(data: Path, **keys: Value) -> ClientData:
    spec = federated_spec(KEYS | keys)
    return load_site_data(Site("north", data), spec, "standard", 0.5)


def test_folders_are_read_as_they_are(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for number, name in enumerate(("dog", "cat")):
            save(tmp_path / part / name / "1.png", 0.2 * (number + 1))
    data = read(tmp_path)
    for split in (data.train, data.test):
        # By the classes' order in the key, not by which folders there are.
        assert split.labels.tolist() == [0, 1]
        means = split.features.mean(dim=(1, 2, 3)).tolist()
        np.testing.assert_allclose(means, [0.2, 0.1], atol=1e-3)
    colour = read(tmp_path, **{"picture-colours": "rgb", "picture-size": 16})
    assert colour.train.features.shape == (2, 3, 16, 16)


@pytest.mark.parametrize("mode", ["L", "I;16", "RGB", "RGBA", "P", "LA", "1"])
def test_a_mode_changes_no_brightness(mode: str, tmp_path: Path) -> None:
    """Sixteen bits were clipped to white once, which taught a network nothing."""
    brightness = 1.0 if mode == "1" else 0.2
    for name in ("cat", "dog"):
        for k in range(2):
            save(tmp_path / name / f"{k}.png", brightness, mode)
    data = read(tmp_path)
    assert len(data.train) == len(data.test) == 2
    np.testing.assert_allclose(data.train.features[:, :, :, 0], brightness, atol=3e-3)
    assert float(data.train.features[:, :, :, 7].max()) == 0.0


def test_numbers_name_the_classes_of_a_known_set(tmp_path: Path) -> None:
    for digit in (3, 7):
        for k in range(4):
            save(tmp_path / str(digit) / f"{k}.png", 1.0)
    spec = federated_spec({"dataset": "fashion-mnist"})
    with pytest.raises(DataError, match="image of 8x8, not 28x28"):
        load_site_data(Site("north", tmp_path), spec, "unit", 0.5)
    save(tmp_path / "boot" / "0.png", 1.0)
    with pytest.raises(DataError, match="no class 'boot'; there are 0 to 9"):
        load_site_data(Site("north", tmp_path), spec, "unit", 0.5)


def test_all_that_is_wrong_with_folders_is_one_line(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png", 0.5)
    save(tmp_path / "horse" / "1.png", 0.5)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "1.png").write_bytes(b"none")
    Image.new("F", (8, 8)).save(tmp_path / "cat" / "2.tiff")
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    for fault in (
        "no class 'horse'; there are cat, dog, bird",
        "1.png: not a readable",
        "2.tiff: mode F: the range of its values is not known",
    ):
        assert fault in str(caught.value)
    assert "\n" not in str(caught.value)
    save(tmp_path / "other" / "train" / "cat" / "1.png", 0.5)
    with pytest.raises(DataError, match="no folder test beside the other part"):
        read(tmp_path / "other")
    with pytest.raises(ConfigError, match="picture-classes = 'cat': name two or more"):
        read(tmp_path, **{"picture-classes": "cat"})


def test_a_run_on_pictures_in_one_folder(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog")):
        for k in range(20):
            save(tmp_path / "pictures" / name / f"{k}.png", 0.1 + 0.8 * number)
    where = {"data-dir": str(tmp_path / "pictures"), "output-dir": str(tmp_path)}
    keys = {"model": "linear", "num-clients": 2, "num-rounds": 3, "report": False}
    training = {"learning-rate": 0.5, "local-epochs": 5, "picture-classes": "cat, dog"}
    done = fedsuite.run({**KEYS, **where, **keys, **training, "run-name": "run"})
    assert done.rounds[-1]["accuracy_mean"] == 1.0


def test_scaling_none_leaves_pixels_as_they_are(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for k in range(2):
            save(tmp_path / name / f"{k}.png", 1.0)
    spec = federated_spec(KEYS)
    data = load_site_data(Site("north", tmp_path), spec, "none", 0.5)
    assert data.train.features.unique().tolist() == [0.0, 255.0]
    assert data.train.features.dtype == torch.float32
