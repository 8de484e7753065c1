"""An optimiser's memory as named arrays, so that it can survive between messages."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from fedsuite.messages.records import Arrays
from fedsuite.models.arrays import load_arrays, model_arrays


def optimizer_arrays(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Copy an optimiser's memory out, such as Adam's moments and its count of steps.

    Returns
    -------
    dict
        ``PARAMETER/ENTRY`` to array; empty of an optimiser without memory, or before its
        first step.
    """
    arrays: Arrays = {}
    for name, parameter in model.named_parameters():
        for entry, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                arrays[f"{name}/{entry}"] = value.detach().cpu().numpy().copy()
    return arrays


def load_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Give an optimiser the memory that :func:`optimizer_arrays` took from another.

    Entries of parameters that the model no longer has are left out.
    """
    parameters = dict(model.named_parameters())
    for key, array in arrays.items():
        name, _, entry = key.rpartition("/")
        if name in parameters:
            parameter = parameters[name]
            # In memory that torch allocated, as load_arrays does.
            optimizer.state[parameter][entry] = torch.tensor(array, device=parameter.device)


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Return all that a training must have to go on: parameters, buffers, memory."""
    memory = optimizer_arrays(model, optimizer)
    state = {f"network/{name}": array for name, array in model_arrays(model).items()}
    return state | {f"optimizer/{name}": array for name, array in memory.items()}


def load_training_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, NDArray[Any]],
) -> None:
    """Take back what :func:`training_state` returned."""
    parts: dict[str, Arrays] = {"network": {}, "optimizer": {}}
    for key, array in state.items():
        part, _, name = key.partition("/")
        parts[part][name] = array
    load_arrays(model, parts["network"])
    optimizer.state.clear()
    load_optimizer(model, optimizer, parts["optimizer"])
