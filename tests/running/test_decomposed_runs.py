"""Filter decomposition as experiments: keys, wiring, resume."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedsuite.clients.decomposition.filter_decomposition import DecomposedClient
from fedsuite.core.errors import ConfigError
from fedsuite.engines.api import resume, run
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.models.groups import parameter_groups
from fedsuite.results.reader import Run
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts
from fedsuite.running.worker import Worker
from fedsuite.strategies.decomposition.filter_decomposition import FilterDecomposition
from fedsuite.training.store import MemoryStore
from tests.helpers import bits, digits_experiment, run_digits
from tests.small_runs import final_model

FACTORED: dict[str, Any] = {
    "model": "cnn-shallow",
    "decomposition": True,
    "local_steps": 2,
    "batch_size": 16,
    "clients_per_round": 2,
}
EVERYTHING: dict[str, Any] = {
    **FACTORED,
    "coefficient_period": 3,
    "local_coefficients": "persist",
    "personal_atoms": True,
    "personal_head": "local",
    "server_momentum": 0.5,
}


def digits_run(folder: Path, name: str, **changes: Any) -> Run:
    experiment = digits_experiment(output_dir=str(folder), run_name=name, **changes)
    return run(experiment.values)


def rounds(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


@pytest.mark.parametrize("evaluate_every", [1, 6])
@pytest.mark.parametrize("stop", [2, 4])
def test_resumed_in_the_middle_of_a_period_gives_the_same_bits(
    stop: int, evaluate_every: int, tmp_path: Path
) -> None:
    """Rounds 1 and 4 upload; after either, the held versions are told apart."""
    changes = {**EVERYTHING, "evaluate_every": evaluate_every}
    whole = digits_run(tmp_path, "whole", num_rounds=6, **changes)
    part = digits_run(tmp_path, "part", num_rounds=stop, **changes)
    resume(part.path, num_rounds=6)
    assert final_model(part.path) == final_model(whole.path)
    if evaluate_every == 1:
        # Else the part was scored after its own last round too.
        assert rounds(part.path) == rounds(whole.path)
    for found, expected in zip(rounds(part.path), rounds(whole.path), strict=True):
        assert found["true_bytes_down"] == expected["true_bytes_down"]
    assert not any(row["replies_rejected"] for row in rounds(whole.path))


def test_personal_atoms_leave_the_shared_model_alone() -> None:
    def final(**changes: Any) -> dict[str, bytes]:
        return bits(run_digits(digits_experiment(**FACTORED, **changes)).arrays[-1])

    assert final() == final(personal_atoms=True) != final(coefficient_period=2)


def test_control_c1_runs_where_atoms_span_the_filters() -> None:
    changes = {**FACTORED, "atoms": 25, "num_rounds": 2}
    products = run_digits(digits_experiment(**changes, decomposition_average="products"))
    factors = run_digits(digits_experiment(**changes, measure_cross_terms=True))
    assert bits(products.arrays[-1]) != bits(factors.arrays[-1])
    ratios = [t.reports[0].metrics["cross_term_ratio"] for t in (products, factors)]
    assert 0 < ratios[0] < 0.5
    assert ratios[0] == pytest.approx(ratios[1], rel=0.2)


@pytest.mark.parametrize(
    ("changes", "server", "clients"),
    [
        ({}, False, False),
        ({"coefficient_period": 2}, True, True),
        ({"personal_atoms": True}, True, True),
        ({"freeze_atoms": True}, True, True),
        ({"measure_cross_terms": True}, True, False),
        ({"decomposition_average": "products"}, True, False),
        ({"decomposition_average": "factors-regauged"}, True, False),
    ],
)
def test_who_is_wrapped(changes: dict[str, Any], server: bool, clients: bool) -> None:
    experiment = digits_experiment(**FACTORED, **changes)
    model = experiment_model(experiment, federated_data(experiment))
    strategy = build_strategy(experiment, ServerParts(parameter_groups(model)))
    assert isinstance(strategy.layer, FilterDecomposition) == server
    worker = Worker(experiment, MemoryStore())
    client: Any = worker.client(None, 0)  # type: ignore[arg-type]
    assert isinstance(client, DecomposedClient) == clients


def test_keys_are_refused_without_decomposition() -> None:
    with pytest.raises(ConfigError, match="coefficient-period = 5: it does not apply here"):
        Experiment.from_values({"coefficient-period": 5})


def test_what_the_wrapper_refuses_is_an_error_of_the_experiment() -> None:
    experiment = digits_experiment(
        **FACTORED, method="term", decomposition_average="products"
    )
    model = experiment_model(experiment, federated_data(experiment))
    with pytest.raises(ConfigError, match="method term: cross terms"):
        build_strategy(experiment, ServerParts(parameter_groups(model)))
