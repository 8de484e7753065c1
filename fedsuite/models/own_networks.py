"""Networks that are not fedsuite's: seeded as its own, and tried before they are used.

Such a network is a torch Module that fedsuite can build alike in every process:

- Its parameters are drawn from the global generators of torch, NumPy or Python.
- Its parameters are float32 or bfloat16 and on the CPU; at least one is trained.
- It maps a batch of inputs to one score per class, ``[rows, num_classes]``. Of words, it
  may give scores per position, ``[rows, length, num_classes]``.
"""

from collections.abc import Callable

import torch
from torch import nn

from fedsuite.core.errors import ConfigError, FedsuiteError
from fedsuite.core.rng import seeded
from fedsuite.models.trial import first_line, output_of

_ROWS = 2


def build_own(
    user: str,
    build: Callable[[], object],
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    *,
    words: bool = False,
) -> nn.Module:
    """Build a network with seeded initial parameters, and try it.

    Parameters
    ----------
    user
        ``model NAME``, which errors begin with.
    build
        Builds the network.
    input_shape, num_classes
        Shape of one input, and number of classes.
    seed
        Seed of all draws; the global generators are then as before.
    words
        Whether inputs are numbers of words.

    Raises
    ------
    ConfigError
        If the network cannot be built, or breaks a rule of this module.
    """
    with seeded(seed):
        try:
            model = build()
        except FedsuiteError as error:
            raise ConfigError(f"{user}: {error}") from error
        except Exception as error:
            # Somebody else's code may raise anything.
            raise ConfigError(
                f"{user}: building it for inputs of shape {input_shape} and {num_classes} "
                f"classes failed ({type(error).__name__}: {first_line(error)}): mend it"
            ) from error
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"{user} returned a {type(model).__name__}: return a torch.nn.Module"
            )
        # Lazy layers draw their parameters here.
        _check_output(user, model, input_shape, num_classes, words)
    _check_parameters(user, model)
    return model


def _check_output(
    user: str, model: nn.Module, input_shape: tuple[int, ...], num_classes: int, words: bool
) -> None:
    kind = torch.int64 if words else torch.float32
    inputs = torch.zeros(_ROWS, *input_shape, dtype=kind)
    batch = f"a batch of shape {tuple(inputs.shape)}"
    try:
        scores = output_of(model, inputs)
    except Exception as error:
        raise ConfigError(
            f"{user} cannot take {batch} ({type(error).__name__}: {first_line(error)}): "
            "choose another model or data set, or mend it"
        ) from error
    allowed: list[tuple[int, ...]] = [(_ROWS, num_classes)]
    if words:
        allowed.append((_ROWS, *input_shape, num_classes))
    output = f"a {type(scores).__name__}"
    if isinstance(scores, torch.Tensor):
        if tuple(scores.shape) in allowed:
            return
        output = f"shape {tuple(scores.shape)}"
    raise ConfigError(
        f"{user} makes {output} of {batch}: return a tensor of shape {allowed[-1]}, one "
        "score per class"
    )


def _check_parameters(user: str, model: nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"{user} has no parameter to train: give it one")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise ConfigError(
                f"{user}: {name} is on {tensor.device}: build it on the CPU; the key "
                "device says where it trains"
            )
        if tensor.is_complex():
            raise ConfigError(
                f"{user}: {name} is {tensor.dtype}: expected torch.float32; keep the real "
                "and the imaginary parts in two arrays, as torch.view_as_real gives them"
            )
        known = (torch.float32, torch.bfloat16)
        if tensor.is_floating_point() and tensor.dtype not in known:
            raise ConfigError(f"{user}: {name} is {tensor.dtype}: expected torch.float32")
