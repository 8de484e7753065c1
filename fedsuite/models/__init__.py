"""Networks by name.

A network is one class in a file of this package, a builder function beside it, and one
entry of :data:`MODELS`, where those of installed packages are found too. Its keys are
declared here, so that they can be listed without importing torch; for the same reason
``decompose`` and ``recompose`` are imported when they are first used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsuite.core.errors import ConfigError, nearest
from fedsuite.core.keys import Value
from fedsuite.core.plug_ins import Registry, import_code
from fedsuite.core.rng import seeded, stream_seed
from fedsuite.core.settings import Settings, key
from fedsuite.models.groups import ParameterGroups, parameter_groups

if TYPE_CHECKING:
    import torch

    from fedsuite.models.decomposed import decompose, recompose

__all__ = [
    "MODELS",
    "ModelSpec",
    "ParameterGroups",
    "build_model",
    "count_parameters",
    "decompose",
    "model_spec",
    "parameter_groups",
    "recompose",
]


@dataclass(frozen=True)
class ModelSpec:
    """One network of the registry.

    Parameters
    ----------
    description
        One line for lists of networks.
    builder
        ``module:function``. The function takes the shape of one input without the batch
        axis, the number of classes, and one keyword per key; it returns the network.
    settings
        Declares the experiment keys that only this network has.
    own
        Whether the network is not fedsuite's, so that it is tried before it is used.
    """

    description: str
    builder: str
    settings: type[Settings] = Settings
    own: bool = False


class HiddenLayers(Settings):
    """Keys of the mlp."""

    hidden_width: int = key(default=200, help="units in each hidden layer", minimum=1)
    hidden_layers: int = key(
        default=2, help="hidden layers; 0 is softmax regression", minimum=0
    )


class EmbeddedWords(Settings):
    """Keys of the embedding-bag."""

    vocabulary_size: int = key(
        default=10_000,
        help="numbers of words that rows may hold, 0 to one less; 0 is padding",
        minimum=1,
    )
    embedding_width: int = key(
        default=64, help="numbers that stand for a word", minimum=1, maximum=4096
    )


_OURS: dict[str, ModelSpec] = {
    "linear": ModelSpec(
        "Softmax regression: one linear layer on the flattened input.",
        "fedsuite.models.dense:linear",
    ),
    "mlp": ModelSpec(
        "Hidden ReLU layers, 784-200-200-10 on 28 x 28 images.",
        "fedsuite.models.dense:mlp",
        HiddenLayers,
    ),
    "cnn": ModelSpec(
        "FedEBA+'s CNN: two 5 x 5 convolutions of 64, then 384 and 192 units.",
        "fedsuite.models.cnn:cnn",
    ),
    "cnn-narrow": ModelSpec(
        "The cnn with convolutions of 32, then 128 and 64 units.",
        "fedsuite.models.cnn:cnn_narrow",
    ),
    "cnn-wide": ModelSpec(
        "The cnn with convolutions of 128.",
        "fedsuite.models.cnn:cnn_wide",
    ),
    "cnn-shallow": ModelSpec(
        "The cnn with one convolution, averaged over the image.",
        "fedsuite.models.cnn:cnn_shallow",
    ),
    "cnn-deep": ModelSpec(
        "The cnn with three 3 x 3 convolutions of 64, 128 and 128.",
        "fedsuite.models.cnn:cnn_deep",
    ),
    "cnn-3x3": ModelSpec(
        "Small CNN: 3 x 3 convolutions of 16, 32 and 64, then 128 units.",
        "fedsuite.models.cnn:cnn_3x3",
    ),
    "cnn-celeba": ModelSpec(
        "LEAF's CNN for CelebA: four 3 x 3 convolutions of 32, normalised.",
        "fedsuite.models.celeba:cnn_celeba",
    ),
    "lenet-5": ModelSpec(
        "LeNet-5: 5 x 5 convolutions of 6 and 16, then 120 and 84 units.",
        "fedsuite.models.lenet:lenet5",
    ),
    "cnn-fedakd": ModelSpec(
        "FedAKD's CNN: 3 x 3 convolutions of 32 and 64, normalised; no hidden units.",
        "fedsuite.models.cnn:cnn_fedakd",
    ),
    "cnn-plain-2": ModelSpec(
        "FedAKD's appendix D, grey images: 3 x 3 convolutions of 16 and 32, no pooling.",
        "fedsuite.models.cnn:cnn_plain_2",
    ),
    "cnn-plain-3": ModelSpec(
        "FedAKD's appendix D, colour: 3 x 3 convolutions of 32, 64 and 128, no pooling.",
        "fedsuite.models.cnn:cnn_plain_3",
    ),
    "cnn-pfl": ModelSpec(
        "pfl-research's CNN: 3 x 3 convolutions of 32 and 64, then 128 units; no dropout.",
        "fedsuite.models.cnn:cnn_pfl",
    ),
    "lenet-b": ModelSpec(
        "FedRep's CNN: two 5 x 5 convolutions of 64, then 120 and 64 units.",
        "fedsuite.models.lenet:lenet_b",
    ),
    "lenet-b100": ModelSpec(
        "FedRep's CNN for 100 classes: 64 and 128, then 256 and 128 units, dropout.",
        "fedsuite.models.lenet:lenet_b100",
    ),
    "lenet-c": ModelSpec(
        "FedPAC's CNN: convolutions of 16, 32 and 64, then 128 units, leaky ReLU.",
        "fedsuite.models.lenet:lenet_c",
    ),
    "lenet-m": ModelSpec(
        "McMahan's CNN without padding: 5 x 5 convolutions of 32 and 64, 512 units.",
        "fedsuite.models.lenet:lenet_m",
    ),
    "resnet18": ModelSpec(
        "ResNet-18 in its 32 x 32 form: 3 x 3 stem, no max-pooling.",
        "fedsuite.models.resnet:resnet18",
    ),
    "resnet34": ModelSpec(
        "ResNet-34 in the same form.",
        "fedsuite.models.resnet:resnet34",
    ),
    "resnet18-imagenet": ModelSpec(
        "ResNet-18 as published: 7 x 7 stem of stride 2 and max-pooling.",
        "fedsuite.models.resnet:resnet18_imagenet",
    ),
    "wide-resnet-10-1": ModelSpec(
        "Wide ResNet of 10 layers, 16 to 64 channels.",
        "fedsuite.models.wide_resnet:wide_resnet_10_1",
    ),
    "wide-resnet-10-2": ModelSpec(
        "Wide ResNet of 10 layers, 32 to 128 channels.",
        "fedsuite.models.wide_resnet:wide_resnet_10_2",
    ),
    "wide-resnet-16-1": ModelSpec(
        "Wide ResNet of 16 layers, 16 to 64 channels.",
        "fedsuite.models.wide_resnet:wide_resnet_16_1",
    ),
    "mobilenet-v2": ModelSpec(
        "MobileNet-v2 in its form for images of 32 to 64 pixels.",
        "fedsuite.models.mobilenet:mobilenet_v2",
    ),
    "lstm-reddit": ModelSpec(
        "Next words: embedding of 200, two LSTM layers of 256, scores for all words.",
        "fedsuite.models.recurrent:lstm_reddit",
    ),
    "embedding-bag": ModelSpec(
        "Text: the mean of a row's embedded words, then one linear layer.",
        "fedsuite.models.words:embedding_bag",
        EmbeddedWords,
    ),
}


def _added(name: str, code: str, loaded: object) -> ModelSpec:
    """Return the network of a package or of one's own code."""
    if isinstance(loaded, ModelSpec):
        return replace(loaded, own=True)
    if loaded is not None and not callable(loaded):
        raise ConfigError(f"{code} is a {type(loaded).__name__}: name a class or function")
    summary = (getattr(loaded, "__doc__", None) or "").partition("\n\n")[0]
    return ModelSpec(" ".join(summary.split()), code, own=True)


MODELS: Registry[ModelSpec] = Registry(
    "model", "fedsuite.models", _OURS, _added, takes_code=True
)
"""The networks by name, those of installed packages and ``module:name`` too."""


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used (PEP 562)."""
    if name not in ("decompose", "recompose"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fedsuite.models.decomposed"), name)


def build_model(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    seed: int,
    *,
    client_id: int = 0,
    words: bool = False,
    **options: Value,
) -> "torch.nn.Module":
    """Build a network, float32 and on the CPU, with seeded initial parameters.

    The parameters are drawn from the stream ``"model"`` of the seed: same arguments, same
    bits. The global state of torch's generator is neither used nor changed; it is set
    aside meanwhile, so no other thread may draw from it during the call.

    Parameters
    ----------
    name
        Name in :data:`MODELS`.
    input_shape
        Shape of one input without the batch axis: (channels, height, width) for images,
        (features,) for tables.
    num_classes
        Number of outputs, at least 1.
    seed
        The experiment's seed.
    client_id
        Client whose part of the stream is drawn from; 0 is also what clients share.
    words
        Whether inputs are numbers of words, on which a network of one's own is then tried.
    **options
        Values of the network's own keys by their argument names, such as
        ``hidden_width``; a key that is left out has its default.

    Raises
    ------
    ConfigError
        Where the name is unknown, an option is not one of the network's or has a bad
        value, or the network cannot take inputs of this shape, or one's own network
        breaks a rule of :mod:`fedsuite.models.own_networks`.
    """
    import torch

    spec = model_spec(name)
    if num_classes < 1 or not input_shape or min(input_shape) < 1:
        raise ConfigError(
            f"model {name}: input of shape {tuple(input_shape)} and {num_classes} classes: "
            "expected sizes of at least 1"
        )
    arguments = _arguments(name, spec, options)
    shape, model_seed = tuple(input_shape), stream_seed(seed, "model", client_id=client_id)
    if spec.own:
        from fedsuite.models.own_networks import build_own

        build = partial(_call, spec.builder, shape, num_classes, arguments)
        return build_own(
            f"model {name}", build, shape, num_classes, model_seed, words=words
        )
    with seeded(model_seed):
        model = _call(spec.builder, shape, num_classes, arguments)
    assert isinstance(model, torch.nn.Module)
    return model


def _call(
    builder: str, shape: tuple[int, ...], num_classes: int, arguments: dict[str, Value]
) -> object:
    build: Any = import_code(builder)
    return build(shape, num_classes, **arguments)


def model_spec(name: str) -> ModelSpec:
    """Return the entry of :data:`MODELS`, or raise :class:`ConfigError`."""
    if name not in MODELS:
        near = nearest(name, MODELS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"unknown model {name!r}: known are {', '.join(MODELS)}{hint}")
    return MODELS[name]


def count_parameters(model: "torch.nn.Module") -> int:
    """Return the number of trainable scalars; buffers are not counted."""
    return sum(
        parameter.numel() for parameter in model.parameters() if parameter.requires_grad
    )


def _arguments(name: str, spec: ModelSpec, options: dict[str, Value]) -> dict[str, Value]:
    known = {key.argument: key for key in spec.settings.KEYS}
    for option in options:
        if option not in known:
            allowed = ", ".join(known) or "none"
            raise ConfigError(f"model {name} has no option {option!r}: it takes {allowed}")
    return {
        argument: key.parse(options.get(argument, key.default))
        for argument, key in known.items()
    }
