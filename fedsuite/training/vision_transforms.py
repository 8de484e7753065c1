"""Changes of training images by torchvision's transforms, after crop and flip.

The key ``torchvision-augmentation`` names a class of ``torchvision.transforms.v2``, with
its defaults unless said here:

- ``trivial-augment``: ``TrivialAugmentWide``;
- ``rand-augment``: ``RandAugment``;
- ``auto-augment``: ``AutoAugment`` with the policy for ImageNet;
- ``aug-mix``: ``AugMix``;
- ``random-erasing``: ``RandomErasing`` of half of the images, to black;
- ``colour-jitter``: ``ColorJitter`` of 0.4, 0.4, 0.4 and, for hue, 0.1.

torchvision would change all images of a batch alike; here each image has draws of its own,
from the client's stream. torchvision draws from torch's global generators: meanwhile they
stand where the stream does, and are put back. On a GPU, AugMix takes the weights of its
mixture from the GPU's own generator, whose numbers differ from a processor's. Transforms
want pixels in 0 to 1: the scaling of the data is undone before them, and redone after.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedsuite.core.errors import ConfigError
from fedsuite.models.shapes import PIXELS, Standardisation
from fedsuite.models.torchvision_import import import_torchvision
from fedsuite.training.augmentation import HUE_TURNS, STRENGTH, crop_and_flip

NONE = "none"

_JITTER = {"brightness": STRENGTH, "contrast": STRENGTH, "saturation": STRENGTH}
_CLASSES: dict[str, tuple[str, dict[str, float]]] = {
    "trivial-augment": ("TrivialAugmentWide", {}),
    "rand-augment": ("RandAugment", {}),
    "auto-augment": ("AutoAugment", {}),
    "aug-mix": ("AugMix", {}),
    "random-erasing": ("RandomErasing", {}),
    "colour-jitter": ("ColorJitter", {**_JITTER, "hue": HUE_TURNS}),
}

AUGMENTATIONS = (NONE, *_CLASSES)
"""Values of the key ``torchvision-augmentation``."""


class VisionTransform:
    """A transform of torchvision that changes each image of a batch by itself.

    ``name`` is a value of the key ``torchvision-augmentation`` but ``none``;
    ``standardisation`` is mean and standard deviation of each channel that inputs were
    scaled with. ConfigError if torchvision cannot be imported.
    """

    def __init__(self, name: str, standardisation: Standardisation = PIXELS) -> None:
        self.name = name
        user = f"key torchvision-augmentation = {name!r}"
        class_name, options = _CLASSES[name]
        make = getattr(import_torchvision("transforms.v2", user), class_name)
        self._transform: Callable[[Tensor], Tensor] = make(**options)
        self._mean, self._std = standardisation

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return changed grey or RGB images in their own scaling.

        The CPU generator makes all draws. ConfigError if the inputs are no such images.
        """
        _check_images(self.name, tuple(images.shape[1:]))
        mean = images.new_tensor(self._mean).reshape(-1, 1, 1)
        std = images.new_tensor(self._std).reshape(-1, 1, 1)
        # Undoing the scaling may leave them a last bit outside.
        pixels = (images * std + mean).clamp(0, 1)
        with global_draws_from(generator, images.device):
            changed = torch.stack([self._transform(image) for image in pixels])
        return (changed - mean) / std


def check_augmentation(name: str, input_shape: tuple[int, ...]) -> None:
    """Raise ConfigError if inputs of a shape (without the batch) cannot be changed so."""
    if name != NONE:
        _check_images(name, input_shape)
        VisionTransform(name)


def _check_images(name: str, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        raise ConfigError(
            f"key torchvision-augmentation = {name!r} needs grey or colour images, got "
            f"inputs of shape {input_shape}: set it to {NONE!r}, or choose another data set"
        )


def image_changes(
    crop: bool, name: str, standardisation: Standardisation, generator: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """Return the function that changes a batch of training images.

    ``crop`` and ``name`` are the keys ``crop-and-flip`` and ``torchvision-augmentation``;
    for ``standardisation`` see :class:`VisionTransform`. The CPU generator moves on per
    batch.
    """
    transform = None if name == NONE else VisionTransform(name, standardisation)

    def changed(images: Tensor) -> Tensor:
        if crop:
            images = crop_and_flip(images, generator)
        return images if transform is None else transform(images, generator)

    return changed


@contextmanager
def global_draws_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Put torch's global generators where a generator stands, and back afterwards.

    Draws of the CPU's move the generator on; a GPU's is seeded by it. No other thread may
    draw meanwhile.
    """
    devices = [device] if device.type == "cuda" else []
    # Drawn on a processor too, so that what follows is the same.
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.set_state(generator.get_state())
        if devices:
            torch.cuda.manual_seed(seed)
        yield
        generator.set_state(torch.default_generator.get_state())
