"""Which clients keep something between rounds: they say so, and they do."""

import numpy as np
import pytest

from fedsuite.clients import load_client
from fedsuite.core.errors import RunError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.messages.records import Arrays, Request
from fedsuite.strategies import load_strategy
from fedsuite.training.base import FederatedClient
from fedsuite.training.store import MemoryStore
from tests.helpers import Matrix, digits_experiment, run_digits, samples

KEEPING = {
    load_client(method): name
    for name, method in METHODS.items()
    if load_client(method).KEEPS_STATE
}
"""Client class that says that it keeps something, to a method of it."""


class CountingStore(MemoryStore):
    """Counts what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.saved = self.loaded = 0

    def load(self, client_id: int, version: str) -> Arrays:
        self.loaded += 1
        return super().load(client_id, version)

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        self.saved += 1
        super().save(client_id, version, arrays, needed)


@pytest.mark.parametrize("client", KEEPING, ids=lambda client: client.__name__)
def test_what_says_that_it_keeps_something_does(client: type[FederatedClient]) -> None:
    method, store = KEEPING[client], CountingStore()
    small: dict[str, Value] = {"num_rounds": 2, "num_clients": 2, "local_steps": 1}
    run_digits(digits_experiment(method=method, model="mlp", **small), store)
    assert store.saved >= 2 * 2
    assert store.loaded >= 2


def test_what_does_not_say_so_cannot() -> None:
    class Silent(FederatedClient):
        pass

    data = samples(1.0, 1)
    client = Silent(Matrix(), data, data)
    with pytest.raises(RunError, match=r"^Silent stores something .*: set KEEPS_STATE"):
        client.save_state(Request("train", 0), {"w": np.zeros(1)})


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_needs_a_keeping_client_has_one(name: str) -> None:
    stores = load_strategy(METHODS[name]).NEEDS_OF_CLIENT.stores
    assert load_client(METHODS[name]).KEEPS_STATE or not stores
