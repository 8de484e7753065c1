"""Rounds of FCCL, and what FCCL+ has in common with it."""

from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.clients.distillation.fccl import FCCLClient, correlation_loss, with_previous
from fedsuite.clients.distillation.fccl_plus import FCCLPlusClient
from fedsuite.clients.distillation.fedmd import FedMDClient
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies.distillation.fccl import FCCL
from fedsuite.strategies.distillation.fccl_plus import FCCLPlus
from fedsuite.strategies.distillation.fedmd import FedMD
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.strategies.distillation.correlations import METHODS, SLOPE
from tests.strategies.distillation.public import (
    CLIENTS,
    FIXTURE,
    NO_TRAINING,
    Federation,
    Fixed,
    assert_same_models,
    differ,
    equal,
    normalised,
    small,
    strategy_of,
    tables,
    tables_strategy,
    wide,
)


def fixture_round(**options: Any) -> tuple[list[dict[str, Any]], Federation]:
    federation = tables(FCCLClient)
    report = federation.run(tables_strategy(FCCL, **options), 1).reports[0]
    return report.train.rows, federation


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 2.945964),
        ({"fccl_std": "biased"}, 3.420984),
        ({"fccl_off_diagonal": 0.0}, 2.919659),
        # Where the model is as the local phase left it, the two targets are one.
        ({"fccl_target": "others-and-previous"}, 2.945964),
    ],
)
def test_a_round_of_the_specification_s_example(
    options: dict[str, Any], expected: float
) -> None:
    rows, federation = fixture_round(**options)
    assert rows[0]["transfer_loss"] == pytest.approx(expected, abs=2e-6)
    assert [row["constant_columns"] for row in rows] == [0, 0, 0]
    if not options:
        went = np.array(FIXTURE[1]) - federation.models()[0][0]
        np.testing.assert_allclose(went, SLOPE, atol=1e-5)


@pytest.mark.parametrize("target", ["all", "others-and-previous"])
def test_the_previous_model_is_that_of_the_local_phase(target: str) -> None:
    _, first = fixture_round()
    after_one = [torch.from_numpy(m[0]).double() for m in first.models()]
    rows, _ = fixture_round(fccl_target=target, transfer_steps=2)
    mean = torch.stack(after_one).mean(dim=0)
    for row, own, start in zip(rows, after_one, CLIENTS, strict=True):
        wanted = mean if target == "all" else with_previous(mean, own, start, 3)
        loss = float(correlation_loss(own, wanted))
        assert row["transfer_loss"] == pytest.approx(loss, abs=1e-4)
    assert float(correlation_loss(after_one[0], mean)) != pytest.approx(
        float(
            correlation_loss(after_one[0], with_previous(mean, after_one[0], CLIENTS[0], 3))
        ),
        abs=1e-2,
    )


@pytest.mark.parametrize("epochs", [0, 2])
def test_teachers_are_of_the_last_local_phase_and_of_pre_training(epochs: int) -> None:
    class Noting(FCCLClient):
        def before_local_phase(self, request: Any) -> None:
            starts.append(model_arrays(self.model))
            super().before_local_phase(request)
            teachers.append([model_arrays(teacher) for teacher in self._teachers])
            assert not any(teacher.training for teacher in self._teachers)
            begun.append(model_arrays(self.model))

        def after_local_phase(self, request: Any) -> None:
            super().after_local_phase(request)
            assert not self._teachers
            ends.append(model_arrays(self.model))

    starts: list[Any] = []
    teachers: list[Any] = []
    begun: list[Any] = []
    ends: list[Any] = []
    federation = Federation(Noting, [normalised, normalised])
    strategy = strategy_of(FCCL, 2, fccl_pretrain_epochs=epochs)
    trace = federation.run(strategy, 3)
    for client_id in (0, 1):
        own = slice(client_id, None, 2)
        known, begins, left = teachers[own], begun[own], ends[own]
        assert [len(held) for held in known] == [2 if epochs else 1] * 3
        # At first the previous model is the one that the local phase begins with.
        assert equal(known[0][0], begins[0])
        assert equal(known[1][0], left[0]) and equal(known[2][0], left[1])
        # Not the one that the transfer left.
        assert not equal(known[1][0], begins[1])
        assert equal(starts[own][0], begins[0]) is (epochs == 0)
        assert all(equal(a, b) for a, b in zip(starts[own][1:], begins[1:], strict=True))
        if epochs:
            assert all(equal(held[1], begins[0]) for held in known)
    steps = [[row.get("pretrain_steps") for row in r.train.rows] for r in trace.reports]
    # 23 rows, 8 a batch, two passes.
    assert steps == ([[6, 6], [0, 0], [0, 0]] if epochs else [[None, None]] * 3)
    assert [row["num_steps"] for row in trace.reports[0].train.rows] == [2, 2]


def test_pre_training_leaves_its_optimiser_behind() -> None:
    store = MemoryStore()
    federation = Federation(FCCLClient, store=store)
    strategy = strategy_of(FCCL, fccl_pretrain_epochs=3)
    federation.run(strategy, 1)
    state = store.load(0, strategy.client_versions[0])
    # Two local steps and two on public data.
    assert {float(a) for n, a in state.items() if n.endswith("/step")} == {4.0}


def test_each_key_has_a_part() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"fccl_off_diagonal": 1.0},
        {"fccl_std": "biased"},
        {"fccl_target": "others-and-previous"},
        {"fccl_pretrain_epochs": 1},
    ]
    runs = [Federation(FCCLClient) for _ in settings]
    for federation, options in zip(runs, settings, strict=True):
        federation.run(strategy_of(FCCL, **options))
    assert all(differ(runs[0], other) for other in runs[1:])


def test_a_single_client_has_nobody_to_correlate_with() -> None:
    one_step = TrainingOptions(
        local_steps=1, batch_size=8, learning_rate=0.01, optimizer="adam"
    )
    runs = [
        Federation(client, [wide], training=one_step)
        for client in (FCCLClient, FCCLPlusClient, FedMDClient)
    ]
    # At its first step a local phase is where the last one ended: no teacher pulls.
    trace = runs[0].run(strategy_of(FCCL, 1), 3)
    runs[1].run(strategy_of(FCCLPlus, 1, fccl_plus_renormalise=True), 3)
    runs[2].run(strategy_of(FedMD, 1), 3)
    (plain,) = runs[2].models()
    for federation in runs[:2]:
        for found, expected in zip(federation.models()[0], plain, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
    assert "transfer_loss" not in trace.reports[-1].train.rows[0]


def test_constant_classes_are_counted_over_a_round() -> None:
    federation = Federation(
        FCCLClient, [lambda: Fixed(1.0, 2.0, 3.0), small], training=NO_TRAINING
    )
    trace = federation.run(strategy_of(FCCL, 2, transfer_steps=2), 2)
    for report in trace.reports:
        # In each of two exchanges all three classes of the one, none of the other.
        assert [row["constant_columns"] for row in report.train.rows] == [6, 0]
    np.testing.assert_array_equal(federation.models()[0][0], [1, 2, 3])


@pytest.mark.parametrize("name", METHODS)
def test_order_of_replies_is_of_no_consequence(name: str) -> None:
    kind, client = METHODS[name]
    runs = [Federation(client), Federation(client, order=lambda replies: replies[::-1])]
    for federation in runs:
        federation.run(strategy_of(kind))
    assert_same_models(*runs)


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="public batch of 1"):
        strategy_of(METHODS[name][0], public_batch_size=1)
    with pytest.raises(ValueError, match="public batch of 1"):
        strategy_of(METHODS[name][0], public_rows=1)


def test_temperatures_are_above_0() -> None:
    for key in ("distillation_temperature", "fccl_plus_similarity_temperature"):
        with pytest.raises(ValueError, match=f"{key} = 0"):
            strategy_of(FCCLPlus, **{key: 0.0})
