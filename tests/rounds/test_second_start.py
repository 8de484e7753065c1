"""A strategy object that is used again: nothing is left of the run before."""

from typing import Any

import pytest
from flwr.app import ConfigRecord

from fedsuite.core.registry import METHODS
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.messages.array_records import to_record
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import initial_arrays, server_parts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.effects.cases import base
from tests.helpers import (
    TamperingGrid,
    Trace,
    bits,
    digits_experiment,
    for_client,
    matrix_app,
    run,
    set_arrays,
    zeros,
)

REMEMBERING: dict[str, dict[str, Any]] = {
    "momentum": {"server_momentum": 0.9},
    "adam": {"server_optimizer": "adam"},
    "fedvarp": {"fedvarp": True, "fraction_train": 0.5},
    "medians": {"max_update_norm": "auto"},
}
KINDS = ("scaffold", "feddyn", "afl", "cffl", "fedbuff", "fd", "cfd", "ifca")
"""One method of each kind of memory: the others are tried at night."""


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("name", REMEMBERING)
def test_what_stages_remember_is_gone(name: str, rounds: int) -> None:
    """After one round too, whose number does not go back at the second start."""
    keys = REMEMBERING[name]
    strategy = FedAvg(**keys)
    grids = (TamperingGrid(matrix_app(), 3) for _ in range(2))
    first, again = (run(strategy, grid, rounds) for grid in grids)
    fresh = run(FedAvg(**keys), TamperingGrid(matrix_app(), 3), rounds)
    assert bits(first.arrays[-1]) == bits(again.arrays[-1]) == bits(fresh.arrays[-1])


def test_failed_rounds_suspects_and_warnings_are_gone() -> None:
    """A run that ended in an error leaves nothing that the next one counts."""
    strategy = FedAvg(quorum=3, max_failed_rounds=2)
    broken = for_client(1, "single", set_arrays(weight=[1.0]))
    for _ in range(2):
        with pytest.raises(Exception, match="round 2: 2 rounds in a row had fewer good"):
            run(strategy, TamperingGrid(matrix_app(), 3, broken, (1, 2, 3)), 3)
    assert len(run(strategy, TamperingGrid(matrix_app(), 3), 2).reports) == 2


def test_a_loop_of_the_apps_own_that_begins_again() -> None:
    """As a wrapper does, whose start() is not ours: the number of the round goes back."""

    strategy, ends = FedAvg(server_momentum=0.9), []
    with flower_identity():
        for _ in range(2):
            grid, arrays = TamperingGrid(matrix_app(), 3), zeros()
            for server_round in (1, 2):
                asked = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
                replies = grid.send_and_receive(asked)
                new, _ = strategy.aggregate_train(server_round, replies)
                assert new is not None
                arrays = new
            ends.append(arrays["weight"].numpy().tobytes())
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "method",
    [m if m in KINDS else pytest.param(m, marks=pytest.mark.nightly) for m in METHODS],
)
def test_every_method_begins_afresh(method: str) -> None:
    values = {k.replace("-", "_"): v for k, v in base(method).items()}
    values |= {"num_rounds": 2, "num_clients": 4, "run_name": "run", "report": False}
    experiment = digits_experiment(**values)
    data = federated_data(experiment)
    model = network_model(experiment, data)
    made = server_parts(experiment, data, model)
    strategy = build_strategy(experiment, made)

    def started() -> Trace:
        grid = TamperingGrid(client_app_for(Worker(experiment, MemoryStore())), 4)
        return run(strategy, grid, 2, to_record(initial_arrays(experiment, model, made)))

    first, again = started(), started()
    assert [bits(a) for a in first.arrays] == [bits(a) for a in again.arrays]
    rows = [[r.train.rows for r in t.reports if r.train] for t in (first, again)]
    assert rows[0] == rows[1]
