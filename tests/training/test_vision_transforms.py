"""torchvision's transforms of training images: draws, scaling, and what is refused."""

import sys
from functools import partial

import pytest
import torch
from torch import nn

from fedsuite.clients import FedAvgClient
from fedsuite.core.errors import ConfigError
from fedsuite.core.rng import torch_stream
from fedsuite.data import FederatedData, Split
from fedsuite.models.shapes import PIXELS
from fedsuite.training.augmentation import crop_and_flip
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.vision_transforms import (
    AUGMENTATIONS,
    VisionTransform,
    check_augmentation,
    image_changes,
)
from tests.helpers import digits_experiment, run_digits

NAMES = [name for name in AUGMENTATIONS if name != "none"]
SCALED = (0.3, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture
def transforms():
    return pytest.importorskip("torchvision.transforms.v2")


def images(count, channels=3, side=16, seed=0):
    shape = (count, channels, side, side)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def stream(seed=0):
    return torch_stream(seed, "test")


# Without torchvision


def test_without_torchvision_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    line = (
        "key torchvision-augmentation = 'aug-mix' needs torchvision: pip install "
        "torchvision"
    )
    with pytest.raises(ConfigError) as error:
        VisionTransform("aug-mix")
    assert str(error.value) == line
    experiment = digits_experiment(torchvision_augmentation="aug-mix")
    with pytest.raises(ConfigError) as error:
        run_digits(experiment)
    assert str(error.value) == line


@pytest.mark.parametrize("shape", [(64,), (8, 8), (2, 8, 8), (4, 8, 8)])
def test_what_is_no_grey_or_colour_image_is_refused(shape):
    words = r"'rand-augment' needs grey or colour images, got inputs of shape \("
    with pytest.raises(ConfigError, match=words):
        check_augmentation("rand-augment", shape)
    check_augmentation("none", shape)


def test_names_are_checked():
    with pytest.raises(ConfigError, match="did you mean 'rand-augment'"):
        digits_experiment(torchvision_augmentation="rand-augmnt")


def test_none_needs_no_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    pixels = images(4)
    changed = image_changes(True, "none", PIXELS, stream())
    assert torch.equal(changed(pixels), crop_and_flip(pixels, stream()))


# With torchvision


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_images_are_changed_and_stay_images(transforms, name, channels):
    pixels = images(24, channels)
    found = VisionTransform(name)(pixels, stream())
    assert found.shape == pixels.shape and found.dtype == torch.float32
    assert found.min() >= 0 and found.max() <= 1
    # Some are left alone, none of the transforms leaves most.
    changed = [not torch.equal(a, b) for a, b in zip(found, pixels, strict=True)]
    assert sum(changed) >= 6
    assert not found.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_each_image_has_draws_of_its_own(transforms, name):
    one = images(1)
    found = VisionTransform(name)(one.repeat(16, 1, 1, 1), stream())
    assert len({image.numpy().tobytes() for image in found}) > 4


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_the_streams_and_the_global_generator_stays(transforms, name):
    transform, pixels = VisionTransform(name), images(8)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    generator = stream()
    first, second = transform(pixels, generator), transform(pixels, generator)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = stream()
    assert torch.equal(transform(pixels, again), first)
    assert torch.equal(transform(pixels, again), second)
    assert not torch.equal(first, second)
    assert torch.equal(generator.get_state(), again.get_state())
    assert not torch.equal(transform(pixels, stream(1)), first)


def test_the_generator_is_put_back_after_an_error(transforms, monkeypatch):
    transform = VisionTransform("rand-augment")

    def fails(image):
        torch.rand(3)
        raise RuntimeError("no")

    monkeypatch.setattr(transform, "_transform", fails)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no"):
        transform(images(2), stream())
    assert torch.equal(torch.get_rng_state(), before)


def test_they_are_torchvisions(transforms):
    """One image, torch's generator where the stream stands: torchvision's own result."""
    expected = {
        "trivial-augment": transforms.TrivialAugmentWide(),
        "rand-augment": transforms.RandAugment(),
        "auto-augment": transforms.AutoAugment(),
        "aug-mix": transforms.AugMix(),
        "random-erasing": transforms.RandomErasing(),
        "colour-jitter": transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
    }
    assert list(expected) == NAMES
    pixels = images(12)
    for name, own in expected.items():
        generator, start = stream(), stream()
        found = VisionTransform(name)(pixels, generator)
        torch.randint(2**63 - 1, (), generator=start)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(start.get_state())
            assert torch.equal(found, torch.stack([own(image) for image in pixels])), name
            # The next batch's draws begin where these end.
            end = torch.default_generator.get_state()
        assert torch.equal(generator.get_state(), end), name


@pytest.mark.parametrize("name", NAMES)
def test_the_scaling_of_data_makes_no_difference(transforms, name):
    pixels = images(16)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in SCALED)
    scaled = VisionTransform(name, SCALED)((pixels - mean) / std, stream())
    expected = VisionTransform(name)(pixels, stream())
    # A last bit decides how posterise and equalise round a value.
    near = ((scaled * std + mean - expected).abs() < 1e-5).float().mean()
    assert near > 0.97


def test_a_last_bit_outside_is_cut_off(transforms, monkeypatch):
    """Undone, a scaling may leave pixels a little below 0 or above 1."""
    transform = VisionTransform("rand-augment")
    monkeypatch.setattr(transform, "_transform", lambda image: image)
    found = transform(torch.tensor([-1e-7, 0.5, 1 + 1e-6]).repeat(1, 1, 1, 1), stream())
    assert found.flatten().tolist() == [0.0, 0.5, 1.0]


def test_erased_pixels_are_black_in_the_scaling_of_data(transforms):
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in SCALED)
    grey = ((torch.full((32, 3, 16, 16), 0.5)) - mean) / std
    found = VisionTransform("random-erasing", SCALED)(grey, stream()) * std + mean
    black = found.abs() < 1e-6
    assert black.any()
    assert torch.all(black | ((found - 0.5).abs() < 1e-6))


def test_crop_and_flip_comes_first(transforms):
    pixels = images(8)
    found = image_changes(True, "colour-jitter", PIXELS, stream())(pixels)
    generator = stream()
    shifted = crop_and_flip(pixels, generator)
    assert torch.equal(found, VisionTransform("colour-jitter")(shifted, generator))


def test_what_comes_as_no_image_is_refused(transforms):
    with pytest.raises(ConfigError, match=r"got inputs of shape \(13,\)"):
        VisionTransform("rand-augment")(torch.zeros(3, 13), stream())


class Seen(nn.Module):
    """Softmax regression that keeps what it was trained on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
        self.batches = []

    def forward(self, inputs):
        if self.training:
            self.batches.append(inputs.detach().clone())
        return self.layers(inputs)


def trained_on(name, client_id=0, standardisation=PIXELS):
    data = Split(images(8), torch.arange(8) % 3)
    model = Seen()
    options = TrainingOptions(batch_size=8, torchvision_augmentation=name)
    client = FedAvgClient(
        model,
        data,
        data,
        training=options,
        client_id=client_id,
        standardisation=standardisation,
    )
    client.fit(client.get_parameters({}), {})
    (batch,) = model.batches
    return batch


def test_a_client_trains_on_changed_images_of_its_own_stream(transforms):
    plain, changed = trained_on("none"), trained_on("colour-jitter")
    expected = VisionTransform("colour-jitter")(
        plain, torch_stream(0, "batches-augmentation", 1, 0)
    )
    assert torch.equal(changed, expected)
    own = VisionTransform("colour-jitter")(
        trained_on("none", client_id=3), torch_stream(0, "batches-augmentation", 1, 3)
    )
    assert torch.equal(trained_on("colour-jitter", client_id=3), own)
    scaled = trained_on("random-erasing", standardisation=SCALED)
    assert not torch.equal(scaled, trained_on("random-erasing"))


def test_a_run_has_the_datas_scaling(transforms, monkeypatch):
    given = []
    original = image_changes

    def noted(crop, name, standardisation, generator):
        given.append((name, standardisation))
        return original(crop, name, standardisation, generator)

    monkeypatch.setattr("fedsuite.training.base.image_changes", noted)
    scaling = (0.3,), (0.2,)
    monkeypatch.setattr(FederatedData, "standardisation", property(lambda _: scaling))
    run = partial(digits_experiment, num_rounds=1, local_steps=1)
    run_digits(run(torchvision_augmentation="trivial-augment"))
    assert {name for name, _ in given} == {"trivial-augment"}
    assert {standardisation for _, standardisation in given} == {scaling}
    before = len(given)
    run_digits(run())
    assert len(given) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(transforms, name):
    transform, pixels = VisionTransform(name), images(32)
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    on_cpu, on_gpu = transform(pixels, stream()), transform(pixels.cuda(), stream())
    again = transform(pixels.cuda(), stream())
    assert on_gpu.is_cuda
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])
    torch.testing.assert_close(again, on_gpu)
    if name != "aug-mix":
        assert ((on_gpu.cpu() - on_cpu).abs() < 1e-4).float().mean() > 0.97
