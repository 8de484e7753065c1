"""Two accounts of the communication of training: the paper's, and what was sent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fedsuite.messages.array_records import num_bytes
from fedsuite.method import Arrays, ClientReply, Exchange


@dataclass
class Ledger:
    """Array entries ("parameters", with buffers) and bytes of a round's training."""

    parameters_down: int = 0
    parameters_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def sent(self, exchange: Exchange) -> None:
        """Count an exchange as it leaves."""
        shared = sum(num_entries(arrays) for arrays in exchange.shared.values())
        own = [a for records in exchange.own.values() for a in records.values()]
        self.parameters_down += shared * len(exchange.client_ids)
        self.parameters_down += sum(map(num_entries, own))
        self.bytes_down += exchange.bytes_down()

    def received(self, reply: ClientReply) -> None:
        """Count a good reply."""
        self.parameters_up += sum(map(num_entries, reply.arrays.values()))
        self.bytes_up += reply.num_bytes

    def metrics(self, prefix: str) -> dict[str, float]:
        """Return the numbers by name, for the round's record."""
        return {f"{prefix}_{name}": value for name, value in vars(self).items()}


def nominal(arrays: Arrays, names: Iterable[str], num_clients: int) -> Ledger:
    """Return the paper's account: the named arrays, to each client and back."""
    travelling = {name: arrays[name] for name in names}
    parameters = num_entries(travelling) * num_clients
    size = num_bytes(travelling) * num_clients
    return Ledger(parameters, parameters, size, size)


def num_entries(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of entries of named arrays."""
    return sum(array.size for array in arrays.values())
