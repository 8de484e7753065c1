"""An optimiser's state as named arrays, which survive between messages."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from fedsuite.messages.records import Arrays
from fedsuite.models.arrays import load_arrays, model_arrays


def optimizer_arrays(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Return a copy of an optimiser's state, such as Adam's moments.

    Returns
    -------
    dict
        Arrays by ``PARAMETER/ENTRY``; empty without state, or before the first step.
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
    """Load the state of :func:`optimizer_arrays` into an optimiser.

    Entries of unknown parameters are left out.
    """
    parameters = dict(model.named_parameters())
    for key, array in arrays.items():
        name, _, entry = key.rpartition("/")
        if name in parameters:
            parameter = parameters[name]
            # In torch's own memory, as in load_arrays.
            optimizer.state[parameter][entry] = torch.tensor(array, device=parameter.device)


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Return parameters, buffers and optimiser state, from which training can go on."""
    memory = optimizer_arrays(model, optimizer)
    state = {f"network/{name}": array for name, array in model_arrays(model).items()}
    return state | {f"optimizer/{name}": array for name, array in memory.items()}


def load_training_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, NDArray[Any]],
) -> None:
    """Restore the state that :func:`training_state` returned."""
    parts: dict[str, Arrays] = {"network": {}, "optimizer": {}}
    for key, array in state.items():
        part, _, name = key.partition("/")
        parts[part][name] = array
    load_arrays(model, parts["network"])
    optimizer.state.clear()
    load_optimizer(model, optimizer, parts["optimizer"])
