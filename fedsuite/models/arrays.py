"""Copies of named arrays from and to torch models."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedsuite.core.errors import RunError
from fedsuite.messages.records import Arrays
from fedsuite.models.head import joined
from fedsuite.models.lora import take_rank
from fedsuite.workarounds.torch_modules import plain_state


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and buffers as ``state_dict`` names and orders them."""
    state = plain_state(model)
    return dict(model.state_dict()) if state is None else state


def model_arrays(model: nn.Module, names: Iterable[str] | None = None) -> Arrays:
    """Copy a model's parameters and buffers out, in ``state_dict`` order.

    Those of bfloat16, which NumPy lacks, as float32, which holds them exactly.

    Parameters
    ----------
    model
        Model on any device.
    names
        Names of the arrays; None means all.
    """
    wanted = None if names is None else set(names)
    return {
        name: np.array(_as_numpy(name, _widened(tensor.cpu())))
        for name, tensor in named_tensors(model).items()
        if wanted is None or name in wanted
    }


def bfloat16_names(model: nn.Module) -> frozenset[str]:
    """Return the names of a model's arrays that are bfloat16."""
    state = named_tensors(model)
    return frozenset(n for n, tensor in state.items() if tensor.dtype is torch.bfloat16)


def buffer_names(model: nn.Module) -> frozenset[str]:
    """Return the names of a model's arrays that are buffers: no step trains them."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return frozenset(named_tensors(model)) - trained


def outputs_with(model: nn.Module, values: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Return what a model makes of inputs with other values in place of its parameters.

    Parameters
    ----------
    model
        Any network.
    values
        Values by the names of ``named_parameters()``; other parameters stay.
    inputs
        A batch ``[rows, ...]``.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    # Under one name of each module: under two, torch would leave the values in it.
    whole = {
        joined(prefix, own): values[names[id(parameter)]]
        for prefix, module in model.named_modules()
        for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if names[id(parameter)] in values
    }
    outputs: Tensor = functional_call(model, whole, (inputs,), tie_weights=False)
    return outputs


def load_arrays(
    model: nn.Module, arrays: Mapping[str, NDArray[Any]], *, keep_infinite: bool = False
) -> None:
    """Copy named arrays into a model; its other arrays stay.

    The values go into the model's own memory, so that sums do not depend on the alignment
    of a received array.

    Parameters
    ----------
    model
        Model on any device.
    arrays
        Arrays to copy.
    keep_infinite
        Whether the model's own infinite entries stay, which a strategy sees as 0.

    Raises
    ------
    RunError
        If a name is not in the model, or its shape differs.
    """
    state = named_tensors(model)
    with torch.no_grad():
        for name, array in arrays.items():
            tensor = state.get(name)
            if tensor is not None and tensor.shape != array.shape:
                resized = take_rank(model, name, array.shape)
                tensor = tensor if resized is None else resized
            if tensor is None or tensor.shape != array.shape:
                own_shape = "nothing" if tensor is None else tuple(tensor.shape)
                raise RunError(
                    f"array {name} of shape {array.shape} does not fit the model, which "
                    f"has {own_shape} there: server and client must build the same model"
                )
            if keep_infinite and tensor.is_floating_point() and tensor.isinf().any():
                own = _widened(tensor.cpu()).numpy()
                array = np.where(np.isinf(own), own, array)
            if tensor.is_cpu and tensor.dtype is not torch.bfloat16:
                np.copyto(_as_numpy(name, tensor), array)
            else:
                tensor.copy_(torch.tensor(array))


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _as_numpy(name: str, tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's own memory as an array; RunError for a dtype that NumPy lacks."""
    try:
        array: NDArray[Any] = tensor.detach().numpy()
    except TypeError as error:
        raise RunError(
            f"array {name} is {tensor.dtype}, which NumPy lacks: make it torch.float32"
        ) from error
    return array
