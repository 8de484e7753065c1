"""The clients' networks on a server that averages within each network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import nn

from fedsuite.messages.records import Arrays
from fedsuite.models.assignment import Networks


@dataclass(frozen=True)
class ServerNetworks:
    """Networks, each client's network, and the networks' initial arrays.

    A strategy that declares the part ``networks`` gets one of these. Its global arrays are
    those of all networks, each array named ``INDEX/NAME``. :meth:`join` and :meth:`split`
    go from one form to the other.

    Parameters
    ----------
    networks
        The networks, and each client's network.
    initial
        Initial parameters and buffers per network.
    num_parameters
        Number of trainable scalars per network.
    build
        Function that makes a network's module, by index, with its initial parameters.
    buffers
        Names of the networks' buffers, as they stand in a network and in :meth:`join`.
    """

    networks: Networks
    initial: tuple[Arrays, ...]
    num_parameters: tuple[int, ...]
    build: Callable[[int], nn.Module]
    buffers: frozenset[str] = frozenset()

    def join(self, parts: Sequence[Mapping[str, NDArray[Any]]]) -> Arrays:
        """Return one dictionary of all networks' arrays."""
        return {
            f"{index}/{name}": array
            for index, arrays in enumerate(parts)
            for name, array in arrays.items()
        }

    def split(self, arrays: Mapping[str, NDArray[Any]]) -> list[Arrays]:
        """Return the arrays per network from :meth:`join`'s dictionary."""
        return [
            {name: arrays[f"{index}/{name}"] for name in initial}
            for index, initial in enumerate(self.initial)
        ]
