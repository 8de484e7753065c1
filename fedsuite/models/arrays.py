"""Copies of named arrays from and to torch models."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsuite.core.errors import RunError
from fedsuite.messages.records import Arrays


def model_arrays(model: nn.Module, names: Iterable[str] | None = None) -> Arrays:
    """Copy a model's parameters and buffers out, in ``state_dict`` order.

    Parameters
    ----------
    model
        Model on any device.
    names
        Names of the arrays; None means all.
    """
    wanted = None if names is None else set(names)
    return {
        name: np.array(tensor.detach().cpu().numpy())
        for name, tensor in model.state_dict().items()
        if wanted is None or name in wanted
    }


def load_arrays(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy named arrays into a model; its other arrays stay.

    The values go into the model's own memory, so that sums do not depend on the alignment
    of a received array.

    Raises
    ------
    RunError
        If a name is not in the model, or its shape differs.
    """
    state = model.state_dict()
    with torch.no_grad():
        for name, array in arrays.items():
            tensor = state.get(name)
            if tensor is None or tensor.shape != array.shape:
                found = "nothing" if tensor is None else tuple(tensor.shape)
                raise RunError(
                    f"array {name} of shape {array.shape} does not fit the model, which "
                    f"has {found} there: server and client must build the same model"
                )
            if tensor.is_cpu:
                np.copyto(tensor.numpy(), array)
            else:
                tensor.copy_(torch.tensor(array))
