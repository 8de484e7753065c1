"""Repeated rounds: numbers by hand, the run's own bits, and what repeats start from."""

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.messages.records import ARRAYS, EVALUATE, NUM_EXAMPLES, TRAIN, Reply, Request
from fedsuite.models.decomposed import DecomposedConv2d
from fedsuite.strategies.averaging.fedavg import FedAvg
from simulations.decomposition.aggregation_variance import (
    Clients,
    ProductAverage,
    Repeats,
    RoundRepeater,
    measure,
    variance_figure,
)
from simulations.decomposition.federation import Federation
from simulations.decomposition.filters import DenseSpace, Spread
from tests.helpers import Trace, bits, digits_experiment, run_digits
from tests.results.made_runs import written

SMALL = {"model": "cnn-shallow", "clients_per_round": 2, "local_steps": 2, "batch_size": 16}
SMALL |= {"partitioner": "power-law", "data_fraction": 0.2}
FULL_BATCH = SMALL | {"batch_size": 0}
PERSIST = {
    "decomposition": True,
    "coefficient_period": 3,
    "local_coefficients": "persist",
}
STATES = {
    "dense": {},
    "factored": {"decomposition": True},
    "state on the server": {"server_momentum": 0.9, "fedvarp": True},
    "state of clients": PERSIST,
}


def spread(*vectors):
    result = Spread()
    for vector in vectors:
        result.add(np.array(vector, dtype=float))
    return result


def test_numbers_by_hand():
    repeats = Repeats(
        start=np.array([2.0, 1.0]),
        aggregates=spread((1, 0), (3, 0)),
        products=spread((0, 0), (4, 0)),
    )
    row = repeats.row(7, "factored", "same")
    assert row == (7, "factored", "same", 1.0, 0.25, 1.0, 4.0, 0.25)
    dense = Repeats(np.zeros(2), spread((1, 0), (3, 0)), None).row(7, "dense", "same")
    assert dense == (7, "dense", "same", 1.0, 0.25, 0.25, None, None)


def one_filter(coefficient, atom):
    return {
        "0.atoms": np.full((1, 1, 1), atom, np.float32),
        "0.coefficients": np.full((1, 1, 1), coefficient, np.float32),
    }


def test_average_of_products_by_hand():
    layer = DecomposedConv2d(torch.ones(1, 1, 1), torch.ones(1, 1, 1))
    products = ProductAverage(DenseSpace(nn.Sequential(layer)))
    train = Request(TRAIN, 0)
    for _ in range(2):  # the second time shows that the first is forgotten
        products.begin(one_filter(5.0, 0.0))
        products.watch(train, Reply({ARRAYS: one_filter(1.0, 2.0)}, {NUM_EXAMPLES: 1}))
        products.watch(Request(EVALUATE, 0), Reply({}, {NUM_EXAMPLES: 100}))
        products.watch(train, Reply({ARRAYS: one_filter(3.0, 4.0)}, {NUM_EXAMPLES: 3}))
        assert products.result().tolist() == [(1 * 2 + 3 * 12) / 4]
    products.begin(one_filter(5.0, 0.0))
    only_atoms = {"0.atoms": np.full((1, 1, 1), 2.0, np.float32)}
    products.watch(train, Reply({ARRAYS: only_atoms}, {NUM_EXAMPLES: 1}))
    assert products.result().tolist() == [10]


def measured(experiment, *, repeats=3, clients=("same", "resampled")):
    """Return the run's own trace, and the rows measured beside it."""
    federation = Federation(experiment)
    products = ProductAverage(DenseSpace(federation.model))
    repeater = RoundRepeater(
        federation, products, repeats=repeats, every=1, clients=clients, model="made"
    )
    trace = Trace()
    federation.run(federation.grid(products.watch), [repeater, trace])
    return trace, repeater.rows


@pytest.mark.parametrize("keys", STATES.values(), ids=STATES)
def test_the_run_keeps_its_bits(keys):
    experiment = digits_experiment(**SMALL, **keys)
    trace, rows = measured(experiment, repeats=2)
    plain = run_digits(experiment)
    assert len(trace.arrays) == len(plain.arrays) == 3
    for found, expected in zip(trace.arrays, plain.arrays, strict=True):
        assert bits(found) == bits(expected)
    assert all(row.variance > 0 for row in rows)


@pytest.mark.parametrize("keys", STATES.values(), ids=STATES)
def test_without_chance_only_sampling_varies(keys):
    """With full batches a repeat differs from the run by whatever is restored wrongly.

    And by the order of sums, since full batches are permuted too: by how much depends on
    the processor.
    """
    _, rows = measured(digits_experiment(**FULL_BATCH, **keys))
    for row in rows:
        if row.clients == "same":
            assert row.relative_to_update < 1e-6
        else:
            assert row.relative_to_update > 1e-3
    assert [row.server_round for row in rows] == [1, 1, 2, 2, 3, 3]


def test_a_repeat_may_change_what_it_is_given_back(monkeypatch):
    memory = np.zeros(2)

    def spoil(self, arrays, scalars):
        arrays["memory"] += 1

    monkeypatch.setattr(FedAvg, "state", lambda self: ({"memory": memory}, {}))
    monkeypatch.setattr(FedAvg, "restore", spoil)
    measured(digits_experiment(**SMALL, num_rounds=1), repeats=2)
    assert memory.tolist() == [0, 0]


def test_rounds_that_share_the_coefficients_have_no_cross_terms():
    keys = {"decomposition": True, "coefficient_period": 2, "num_rounds": 2}
    keys |= {"learning_rate": 1.0}
    _, rows = measured(digits_experiment(**SMALL, **keys))
    ratios = {row.server_round: row.ratio for row in rows if row.clients == "same"}
    assert ratios[2] == pytest.approx(1, abs=1e-5)
    assert abs(ratios[1] - 1) > 1e-4


def test_where_all_train_sampling_is_not_measured():
    experiment = digits_experiment(**SMALL | {"clients_per_round": 0})
    settings = {"repeats": 2, "every": 2, "model": "dense"}
    rows = measure(experiment, clients=Clients.BOTH, **settings)
    assert [(row.server_round, row.clients) for row in rows] == [(1, "same"), (3, "same")]


def test_command(simulate, experiment_file):
    file = experiment_file()
    code, out, err = simulate(
        "decomposition.aggregation_variance", file, "--repeats", 2, "--every", 1
    )
    assert (code, err) == (0, "")
    rows = written("aggregation_variance")
    assert [(r["round"], r["model"], r["clients"]) for r in rows] == [
        (server_round, model, clients)
        for model in ("dense", "factored")
        for server_round in "12"
        for clients in ("same", "resampled")
    ]
    assert {bool(row["ratio"]) for row in rows if row["model"] == "dense"} == {False}
    assert all(float(row["ratio"]) > 0 for row in rows if row["model"] == "factored")
    assert "aggregation_variance.png" in out


def test_figure_shows_each_line():
    dense = Repeats(np.zeros(2), spread((1, 0), (3, 0)), None)
    rows = [dense.row(1, "dense", "same"), dense.row(6, "dense", "same")]
    figure = variance_figure(rows)
    assert len(figure.axes) == 3
    line = figure.axes[0].get_lines()[0]
    assert list(line.get_xdata()) == [1, 6]
    assert list(line.get_ydata()) == [1, 1]
