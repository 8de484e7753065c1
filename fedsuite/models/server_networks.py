"""The clients' networks as a server sees them that averages within each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import nn

from fedsuite.messages.records import Arrays
from fedsuite.models.assignment import Networks
from fedsuite.models.shapes import PIXELS, Standardisation


@dataclass(frozen=True)
class ServerNetworks:
    """Networks, who has which, and their initial arrays.

    A strategy that declares the part ``networks`` gets one of these. Its global arrays are
    those of all networks, each array named ``INDEX/NAME``. :meth:`join` and :meth:`split`
    go from one form to the other.

    Parameters
    ----------
    networks
        The networks, and which client has which.
    initial
        For each network its initial parameters and buffers.
    num_parameters
        For each network its number of trainable scalars.
    build
        Makes the module of a network, by index, with its initial parameters.
    standardisation
        Mean and standard deviation of each channel that inputs were scaled with.
    """

    networks: Networks
    initial: tuple[Arrays, ...]
    num_parameters: tuple[int, ...]
    build: Callable[[int], nn.Module]
    standardisation: Standardisation = PIXELS

    def join(self, parts: Sequence[Mapping[str, NDArray[Any]]]) -> Arrays:
        """Return the arrays of all networks under one roof, given them by network."""
        return {
            f"{index}/{name}": array
            for index, arrays in enumerate(parts)
            for name, array in arrays.items()
        }

    def split(self, arrays: Mapping[str, NDArray[Any]]) -> list[Arrays]:
        """Return by network what :meth:`join` made one of."""
        return [
            {name: arrays[f"{index}/{name}"] for name in initial}
            for index, initial in enumerate(self.initial)
        ]
