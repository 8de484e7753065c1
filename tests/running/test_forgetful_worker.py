"""Clients that are made anew for each message answer as those that are kept."""

import gc
import weakref
from typing import Any

import pytest
import torch

from fedsuite.core.keys import Value
from fedsuite.core.least_recent import LeastRecent
from fedsuite.core.registry import METHODS
from fedsuite.messages.records import Arrays
from fedsuite.running import worker as client_app
from fedsuite.running.worker import Worker
from fedsuite.strategies import load_strategy
from fedsuite.training.app import Answering
from fedsuite.training.store import MemoryStore
from tests.helpers import bits, digits_experiment, run_digits

NOBODY: Any = None
"""A context, where none is looked at."""

FEW: dict[str, Value] = {
    "local_steps": 2,
    "batch_size": 8,
    "num_rounds": 3,
    "partitioner": "power-law",
    "data_fraction": 0.1,
}
"""Few steps, and few rows for what goes over all of them."""

NARROW: dict[str, Value] = {"model": "mlp", "hidden_width": 16}
DECOMPOSED: dict[str, Value] = {"model": "cnn-shallow", "decomposition": True}
CASES: dict[str, dict[str, Value]] = {
    **{name: {"method": name} for name in METHODS},
    "newton": {"method": "newton", "model": "linear", "num_clients": 2, "num_rounds": 2},
    "own-starts": {"method": "standalone", "client_initialisation": "own"},
    "adam": {"method": "fedmd", "optimizer": "adam"},
    "personal-atoms": {**DECOMPOSED, "method": "fedavg", "personal_atoms": True},
    "decomposed-ditto": {**DECOMPOSED, "method": "ditto"},
    "fedrep": {"method": "fedrep", "local_steps": 0, "head_epochs": 2},
    "fedsac": {"method": "fedsac", "fedsac_alone_epochs": 2},
}


class Recording(MemoryStore):
    """A store that tells all that was ever saved."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[tuple[int, str, dict[str, bytes]]] = []

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        self.saved.append((client_id, version, bits(arrays)))
        super().save(client_id, version, arrays, needed)


def made_anew(worker: Worker, context: Any, client_id: int) -> Answering:
    """Return a client that nobody has asked before, on a model that others have used."""
    for resident in worker._residents.values():
        with torch.no_grad():
            for parameter in resident.model.parameters():
                parameter.fill_(torch.nan)
    data = worker._data.client(client_id)
    return worker._make(client_id, data)


def outcome(**changes: Value) -> list[Any]:
    """Return all that a run tells and keeps."""
    method = load_strategy(METHODS[str(changes["method"])])
    few = {**FEW, **({} if "model" in changes else NARROW)}
    if method.takes("public_rows"):
        few["public_size"] = 32
    if any(key.name == "transfer-steps" for key in method.KEYS):
        few["transfer_steps"] = 2
    store = Recording()
    trace = run_digits(digits_experiment(**{**few, **changes}), store)
    rows = [phase.rows for report in trace.reports for phase in report.phases]
    assert rows and not any(p.rejections for r in trace.reports for p in r.phases)
    return [rows, [bits(arrays) for arrays in trace.arrays], store.saved]


@pytest.mark.parametrize("case", CASES)
def test_nothing_lasts_from_message_to_message_but_the_store(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = outcome(**CASES[case])
    monkeypatch.setattr(Worker, "client", made_anew)
    assert outcome(**CASES[case]) == kept


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_clients_that_were_not_asked_for_long_are_let_go(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their data: else the bound on what is kept of that would be none."""
    worker = Worker(digits_experiment(method=method, num_clients=6), MemoryStore())
    largest = max(worker._data.client(k).nbytes for k in range(6))
    model = 4 * (64 * 10 + 10)
    copies = client_app.COPIES * model if method == "standalone" else 0
    recent = LeastRecent[int, Answering](2 * (largest + copies))
    monkeypatch.setattr(worker, "_clients", recent)
    clients: Any = [weakref.ref(worker.client(NOBODY, k)) for k in range(3)]
    data = [weakref.ref(worker.client(NOBODY, k).train_data) for k in (1, 2)]  # type: ignore
    assert [client() is None for client in clients] == [True, False, False]
    assert worker.client(NOBODY, 1) is clients[1]()
    worker.client(NOBODY, 3)
    assert [client() is None for client in clients] == [True, False, True]
    worker.client(NOBODY, 4)
    worker.client(NOBODY, 5)
    gc.collect()
    assert [found() for found in data] == [None, None]
