"""torchvision's classification networks, new or pre-trained (the extra ``vision``).

``model = "torchvision"`` is any network of ``torchvision.models`` with one output per
class. The model resizes images to ``torchvision-image-size`` pixels square on its device,
if asked: bilinear, with antialias, as torchvision prepares images for pre-trained weights.
A grey image fills all three channels.

New networks get inputs in the scaling of the data. Pre-trained networks get pixels in 0 to
1, minus the mean and over the standard deviation of their weights; the effect of the key
``scaling`` is undone first. All layers but the classifier are loaded. The classifier is
always drawn, as torchvision draws it. Every process of a run reads the weights, so each
machine needs the file, or a way to download it.

GoogLeNet and Inception have no auxiliary classifiers.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.core.errors import ConfigError, nearest
from fedsuite.models.head import names_of
from fedsuite.models.pretrained import load_pretrained
from fedsuite.models.shapes import Standardisation, image_shape
from fedsuite.models.torchvision_import import first_line, import_torchvision
from fedsuite.models.trial import failure

CHANNELS = 3

_SIZE_ARGUMENT = {"vit_": "image_size", "maxvit_": "input_size"}
"""Argument of the image size, by family of networks with a fixed size."""


class TorchvisionNetwork(nn.Module):
    """A network of torchvision with its preparation of images.

    Parameters
    ----------
    network
        Network of three channels.
    classifier
        Name of the last layer, the classifier.
    size
        Height and width of resized images.
    scale, shift
        Factors and summands per channel: inputs times ``scale`` plus ``shift``. None leaves
        inputs unchanged. One number stands for all channels.
    """

    scale: Tensor | None
    shift: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        classifier: str,
        size: tuple[int, int],
        scale: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.classifier_name = f"network.{classifier}"
        self.size = size
        # Constants move with the model between devices, and are not sent.
        self.register_buffer("scale", _per_channel(scale), persistent=False)
        self.register_buffer("shift", _per_channel(shift), persistent=False)

    def prepared(self, images: Tensor) -> Tensor:
        """Return prepared images, ``[n, 3, height, width]``."""
        if self.scale is not None and self.shift is not None:
            images = images * self.scale + self.shift
        if images.shape[2:] != self.size:
            images = functional.interpolate(
                images, self.size, mode="bilinear", align_corners=False, antialias=True
            )
        return images.expand(-1, CHANNELS, -1, -1)

    @override
    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(self.prepared(images))
        return logits


def torchvision_network(
    input_shape: tuple[int, ...],
    num_classes: int,
    torchvision_model: str,
    torchvision_weights: str,
    torchvision_image_size: int,
    standardisation: Standardisation,
) -> nn.Module:
    """Return a network of torchvision.

    Parameters
    ----------
    input_shape, num_classes
        Shape of an input, and number of outputs.
    torchvision_model
        Name in torchvision's registry, such as ``resnet18``.
    torchvision_weights
        Empty draws the network; ``default``, or a name such as ``IMAGENET1K_V1``.
    torchvision_image_size
        Side of resized images; 0 does not resize.
    standardisation
        Mean and standard deviation of each channel that inputs were scaled with.
    """
    models = import_torchvision("models", "model torchvision")
    channels, height, width = image_shape("torchvision", input_shape)
    if channels not in (1, CHANNELS):
        raise ConfigError(
            f"model torchvision needs grey or colour images, got {channels} channels: "
            "choose another model"
        )
    _check_name(models, torchvision_model)
    side = torchvision_image_size
    size = (side, side) if side else (height, width)
    weights = _weights(models, torchvision_model, torchvision_weights)
    network = _build(models, torchvision_model, num_classes, size, weights)
    classifier = _classifier(network, torchvision_model, num_classes)
    scale = shift = None
    if weights is not None:
        own = names_of(network.get_submodule(classifier), classifier)
        load_pretrained(network, weights, own, torchvision_model)
        scale, shift = _normalisation(weights, standardisation)
    model = TorchvisionNetwork(network, classifier, size, scale, shift)
    reason = failure(model, input_shape)
    if reason:
        raise _too_small(torchvision_model, size, reason)
    return model


def _check_name(models: Any, name: str) -> None:
    known = models.list_models(module=models)
    if name not in known:
        near = nearest(name, known, cutoff=0.0)
        raise ConfigError(
            f"key torchvision-model = {name!r}: no classification network of torchvision, "
            f"the nearest is {near!r}"
        )


def _weights(models: Any, name: str, chosen: str) -> Any:
    """Return a member of the network's enumeration of weights, None for drawn ones."""
    if not chosen:
        return None
    known = models.get_model_weights(name)
    if chosen == "default":
        return known.DEFAULT
    if chosen not in known.__members__:
        names = ", ".join(weights.name for weights in known)
        raise ConfigError(
            f"key torchvision-weights = {chosen!r}: {name} has {names}; default is "
            f"{known.DEFAULT.name}, and empty draws them"
        )
    return known[chosen]


def _build(
    models: Any, name: str, num_classes: int, size: tuple[int, int], weights: Any
) -> nn.Module:
    """Return a new network of the weights' form."""
    options = dict(_options(name, size, weights))
    try:
        network = models.get_model(name, weights=None, num_classes=num_classes, **options)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise _too_small(name, size, first_line(error)) from error
    assert isinstance(network, nn.Module)
    return network


def _options(name: str, size: tuple[int, int], weights: Any) -> Mapping[str, object]:
    """Return the builder's options beside the number of classes."""
    if name in ("googlenet", "inception_v3"):
        # These networks themselves convert inputs to what their weights need.
        transform = weights is not None
        return {"aux_logits": False, "init_weights": True, "transform_input": transform}
    for family, argument in _SIZE_ARGUMENT.items():
        if name.startswith(family):
            if weights is not None and size != tuple(weights.meta["min_size"]):
                side = weights.meta["min_size"][0]
                raise ConfigError(
                    f"model torchvision: weights {weights.name} of {name} are for images "
                    f"of {side} x {side} pixels, got {size[0]} x {size[1]}: set "
                    f"torchvision-image-size = {side}"
                )
            return {argument: size[0] if argument == "image_size" else size}
    return {}


def _classifier(network: nn.Module, name: str, num_classes: int) -> str:
    """Return the name of the last layer, whose outputs are the classes."""
    layers = {
        path: module.out_features if isinstance(module, nn.Linear) else module.out_channels
        for path, module in network.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    }
    last = list(layers)[-1] if layers else ""
    if layers.get(last) != num_classes:
        raise ConfigError(
            f"key torchvision-model = {name!r}: its last layer is no classifier of "
            f"{num_classes} classes: choose another network"
        )
    return last


def _normalisation(weights: Any, standardisation: Standardisation) -> tuple[Tensor, Tensor]:
    """Return scale and shift from the data's scaling to the weights' scaling."""
    prepare = weights.transforms()
    wanted_mean, wanted_std = (
        torch.tensor(values, dtype=torch.float64) for values in (prepare.mean, prepare.std)
    )
    mean, std = (torch.tensor(v, dtype=torch.float64) for v in standardisation)
    return std / wanted_std, (mean - wanted_mean) / wanted_std


def _per_channel(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.float().reshape(-1, 1, 1)


def _too_small(name: str, size: tuple[int, int], reason: str) -> ConfigError:
    return ConfigError(
        f"model torchvision: {name} cannot take images of {size[0]} x {size[1]} pixels "
        f"({reason}): set torchvision-image-size, such as 64 or 224"
    )
