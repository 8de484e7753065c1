"""Changes of training images: torchvision's transforms after crop and flip.

The key ``torchvision-augmentation`` names a class of ``torchvision.transforms.v2``, with
its defaults unless said here:

- ``trivial-augment``: ``TrivialAugmentWide``;
- ``rand-augment``: ``RandAugment``;
- ``auto-augment``: ``AutoAugment`` with the policy for ImageNet;
- ``aug-mix``: ``AugMix``;
- ``random-erasing``: ``RandomErasing`` of half of the images, to black;
- ``colour-jitter``: ``ColorJitter`` of 0.4, 0.4, 0.4 and, for hue, 0.1.

torchvision would change all images of a batch alike; here each has draws of its own, on the
device of the batch. They come from the client's stream: torchvision takes all of them from
torch's global generators, which stand meanwhile where the stream does, and are put back.
On a GPU, AugMix takes the weights of its mixture from the GPU's own generator, whose
numbers are others than a processor's. Transforms want pixels in 0 to 1: the scaling of the
data is undone before them, and done again after.
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

_CLASSES: dict[str, tuple[str, dict[str, float]]] = {
    "trivial-augment": ("TrivialAugmentWide", {}),
    "rand-augment": ("RandAugment", {}),
    "auto-augment": ("AutoAugment", {}),
    "aug-mix": ("AugMix", {}),
    "random-erasing": ("RandomErasing", {}),
    "colour-jitter": (
        "ColorJitter",
        {
            "brightness": STRENGTH,
            "contrast": STRENGTH,
            "saturation": STRENGTH,
            "hue": HUE_TURNS,
        },
    ),
}

AUGMENTATIONS = (NONE, *_CLASSES)
"""Values of the key ``torchvision-augmentation``."""


class VisionTransform:
    """A transform of torchvision that changes each image of a batch by itself.

    Parameters
    ----------
    name
        Value of the key ``torchvision-augmentation``, not ``none``.
    standardisation
        Mean and standard deviation of each channel that inputs were scaled with.

    Raises
    ------
    ConfigError
        If torchvision cannot be imported.
    """

    def __init__(self, name: str, standardisation: Standardisation = PIXELS) -> None:
        self.name = name
        user = f"key torchvision-augmentation = {name!r}"
        transforms = import_torchvision("transforms.v2", user)
        class_name, options = _CLASSES[name]
        self._transform: Callable[[Tensor], Tensor] = getattr(transforms, class_name)(
            **options
        )
        self._mean, self._std = standardisation

    @torch.no_grad()
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return a batch ``[n, channels, height, width]`` changed, in its own scaling.

        Parameters
        ----------
        images
            Of one channel or three.
        generator
            CPU generator of all draws; moves on.

        Raises
        ------
        ConfigError
            If the inputs are no such images.
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
    """Raise ConfigError if images cannot be changed as a run asks for.

    Parameters
    ----------
    name
        Value of the key ``torchvision-augmentation``.
    input_shape
        Shape of one input, without the batch.
    """
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
    """Return what changes a batch of training images.

    Parameters
    ----------
    crop, name
        The keys ``crop-and-flip`` and ``torchvision-augmentation``.
    standardisation
        Mean and standard deviation of each channel that inputs were scaled with.
    generator
        CPU generator of all draws; moves on with each batch.
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

    What is drawn from the processor's moves the generator on; a GPU's is seeded by it. No
    other thread may draw meanwhile.
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
