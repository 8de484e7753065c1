"""Keywords that are set after construction: each holds from then on, or is refused."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.registry import METHODS
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from tests.experiment.test_rules import other_values
from tests.helpers import TamperingGrid, matrix_app, run
from tests.rounds.test_client_needs import parts

GIVEN: Mapping[str, Any] = {
    "fraction_train": 0.5,
    "fraction_evaluate": 0.5,
    "min_train_nodes": 3,
    "min_evaluate_nodes": 3,
    "min_available_nodes": 3,
    "num_clients": 7,
    "num_rounds": 9,
    "weighted_by_key": "rows",
    "arrayrecord_key": "model",
    "configrecord_key": "settings",
    "train_metrics_aggr_fn": max,
    "evaluate_metrics_aggr_fn": max,
    "exchange_timeout": 5.0,
    "identity": "partition",
    "wire": "numpy",
    "training_rows": {1: 5},
    "source_hash": "a",
    "plug_ins": "a",
    "public_fingerprint": "a",
    "site_names": ("a", "b"),
    "evaluation_only": (1,),
    "buffers": ("mask",),
    "halves": ("weight",),
    "contributions": {1: 0.5},
    "learning_rate": 0.25,
    "local_steps": 3,
    "loss_key": "mine",
    "loss_before_key": "mine",
    "fccl_target": "others-and-previous",
    "fccl_pretrain_epochs": 2,
}
"""Another value of each keyword that is no key."""

SHARED = {field.name for field in fields(FederatedStrategy)}
SAMPLE = ("fedavg", "fedeba", "feddyn", "fedakd", "standalone")
"""Methods of every kind, of which the keywords of all strategies are tried."""


def keywords(method: str) -> Iterator[tuple[str, Any]]:
    """Yield each keyword of a strategy, and values that it does not have."""
    strategy = load_strategy(METHODS[method])
    keys = {key.argument: key for key in strategy.KEYS}
    for field in fields(strategy):
        name = field.name
        if not field.init or (name in SHARED and method not in SAMPLE):
            continue
        if name in strategy.PARTS or name == "layer":
            yield name, object()
        elif name in keys:
            values = other_values(keys[name])
            yield from ((name, value) for value in values or ("7,5", "mlp"))
        else:
            yield name, GIVEN[name]


def same(first: Any, second: Any, seen: set[tuple[int, int]]) -> bool:
    """Return whether two objects are made alike, however deep."""
    if first is second or (id(first), id(second)) in seen:
        return True
    seen.add((id(first), id(second)))
    if type(first) is not type(second):
        return False
    if isinstance(first, FunctionType):
        cells = [f.__closure__ or () for f in (first, second)]
        contents = [[cell.cell_contents for cell in row] for row in cells]
        return first.__code__ is second.__code__ and same(*contents, seen)
    if isinstance(first, MethodType):
        return same(first.__self__, second.__self__, seen)
    if isinstance(first, np.ndarray | torch.Tensor):
        return bool((np.asarray(first) == np.asarray(second)).all())
    if isinstance(first, dict):
        keys = first.keys() == second.keys()
        # The mean is begun with each collection of replies.
        names = first.keys() - {"_average"}
        return keys and all(same(first[k], second[k], seen) for k in names)
    if isinstance(first, list | tuple):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(same(a, b, seen) for a, b in pairs)
    if hasattr(first, "__dict__"):
        return same(vars(first), vars(second), seen)
    return bool(first == second)


@pytest.mark.parametrize("method", METHODS)
def test_every_keyword_of_every_strategy(method: str) -> None:
    """Who sets one has what who gives it to the constructor has, or one line of why not."""
    strategy = load_strategy(METHODS[method])
    needed = parts().needed_by(strategy)
    tried = set()
    for name, value in keywords(method):
        later: Any = strategy(**needed)  # type: ignore[arg-type]
        before = getattr(later, name)
        try:
            given = strategy(**{**needed, name: value})  # type: ignore[arg-type]
        except Exception as error:
            given, refused = None, str(error)
        try:
            setattr(later, name, value)
        except (FedsuiteError, ValueError) as error:
            assert "\n" not in str(error)
            assert getattr(later, name) is before, name
            assert same(later, strategy(**needed), set()), name  # type: ignore[arg-type]
            fixed = (
                f"cannot be set: give it to the constructor, {strategy.__name__}({name}="
            )
            assert fixed in str(error) or (given is None and str(error) == refused)
        else:
            assert given is not None, name
            assert same(later, given, set()), name
        tried.add(name)
    own = {f.name for f in fields(strategy) if f.init and f.name not in SHARED}
    assert own <= tried


class Halving(FedAvg):
    """Sets keywords where Flower's users do: before it asks for the messages."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        if server_round == 2:
            self.fraction_train, self.min_train_nodes = 0.34, 1
            self.server_learning_rate = 0.5
            self.weighted_by_key = "num-steps"
        return super().configure_train(server_round, arrays, config, grid)


def test_what_a_subclass_sets_in_a_round_holds_from_then_on() -> None:
    strategy = Halving()
    trace = run(strategy, TamperingGrid(matrix_app(), 3), 2)
    first, second = trace.reports
    assert [len(r.train.rows) for r in (first, second) if r.train] == [3, 1]
    assert strategy.averaging.aggregator == "mean"
    [row] = second.train.rows if second.train else []
    assert row["num_examples"] == 1  # a step, whatever the rows
    value = (1.0, 2.0, 4.0)[int(row["client"]) - 1000]
    assert trace.weights[1] == pytest.approx((trace.weights[0] + value) / 2)


def test_a_setting_of_clients_set_later_is_told_to_them() -> None:
    strategy = FedProx()
    strategy.proximal_mu = 0.5
    grid = TamperingGrid(matrix_app(), 3)
    run(strategy, grid)
    told = {m.content["config"]["proximal-mu"] for m in sent(grid, "train")}
    assert told == {0.5}


def sent(grid: TamperingGrid, phase: str) -> list[Message]:
    return [m for m in grid.sent if m.metadata.message_type == phase]
