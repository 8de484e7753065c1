"""FCCL and FCCL+: their numbers, what must always hold, and rounds of theirs."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.clients.fccl import (
    FCCLClient,
    constant_columns,
    correlation_loss,
    cross_correlation,
    standardise,
    with_previous,
)
from fedsuite.clients.fccl_plus import FCCLPlusClient, non_target_loss, similarities
from fedsuite.clients.fedmd import FedMDClient
from fedsuite.clients.store import MemoryStore
from fedsuite.clients.training import TrainingOptions
from fedsuite.distillation import kl_divergence
from fedsuite.models.arrays import model_arrays
from fedsuite.records import LOGITS, MEAN_OUTPUTS, OUTPUTS, SIMILARITIES, TRANSFER
from fedsuite.strategies.fccl import FCCL
from fedsuite.strategies.fccl_plus import FCCLPlus
from fedsuite.strategies.fedmd import FedMD
from tests.strategies.public import (
    ADAM,
    CLIENTS,
    FIXTURE,
    MIXED,
    NO_TRAINING,
    NUMBERED,
    FeatureTable,
    Federation,
    Fixed,
    Table,
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

MEAN = torch.stack(CLIENTS).mean(dim=0)
CORRELATION = [
    (0.692535, 0.406603, -0.573070),
    (-0.155636, -0.611525, 0.295455),
    (-0.668926, -0.295541, 0.522388),
]
SLOPE = [
    (0.026801, -1.240660, 0.108095),
    (0.042249, -0.300378, -0.023424),
    (-0.061327, 0.600756, -0.128511),
    (-0.007724, 0.940282, 0.043840),
]
FIRST_PREVIOUS = [(1.5, 0, -1), (0, 0.5, 0), (1, 0, 0), (-1, 0, 1)]

LOCAL = [(2, 0, -2), (0, 1, 0)]
LOCAL_PREVIOUS = [(1, 0, -1), (0, 0, 1)]
LOCAL_PRETRAINED = [(3, 0, 0), (0, 1, 2)]
LABELS = torch.tensor([0, 2])

FEATURES = ([(1, 0), (1, 1), (0, 2)], [(1, 1), (0, 1), (1, -1)])


def matrix(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# The specification's numbers


def test_correlation_of_the_specification_s_example() -> None:
    own = CLIENTS[0].clone().requires_grad_(True)
    found = cross_correlation(own, MEAN)
    np.testing.assert_allclose(found.detach(), CORRELATION, atol=1e-6)
    loss = correlation_loss(own, MEAN)
    assert float(loss.detach()) == pytest.approx(2.945964, abs=1e-6)
    (slope,) = torch.autograd.grad(loss, own)
    np.testing.assert_allclose(slope, SLOPE, atol=1e-6)
    same = float(correlation_loss(own, MEAN, 0.0).detach())
    assert same == pytest.approx(2.919659, abs=1e-6)
    both = float(correlation_loss(own, MEAN, 1.0).detach())
    assert both - same == pytest.approx(5.157827, abs=1e-6)


def test_correlation_with_the_biased_deviation() -> None:
    def loss(weight: float) -> float:
        return float(correlation_loss(CLIENTS[0], MEAN, weight, unbiased=False))

    assert loss(0.0051) == pytest.approx(3.420984, abs=1e-6)
    assert loss(0.0) == pytest.approx(3.393527, abs=1e-6)
    assert loss(1.0) - loss(0.0) == pytest.approx(5.383795, abs=1e-6)


def test_correlation_with_the_previous_model_in_the_mean() -> None:
    target = with_previous(MEAN, CLIENTS[0], matrix(FIRST_PREVIOUS), 3)
    others = (matrix(FIRST_PREVIOUS) + CLIENTS[1] + CLIENTS[2]) / 3
    np.testing.assert_allclose(target, others, atol=1e-12)
    loss = float(correlation_loss(CLIENTS[0], target))
    assert loss == pytest.approx(3.280905, abs=1e-6)


def local_client(client_class: Any, *teachers: Any) -> Any:
    """Return a client and these teachers, whose inputs are logits."""
    client = tables(client_class).clients[0]
    client._teachers = [lambda _, held=held: matrix(held) for held in teachers]
    return client


def test_local_loss_of_the_specification_s_example() -> None:
    terms = (0.847188, 0.262145, 0.261165)
    teachers = (LOCAL_PREVIOUS, LOCAL_PRETRAINED)
    for count in range(3):
        client = local_client(FCCLClient, *teachers[:count])
        found = client.loss(nn.Identity(), matrix(LOCAL), LABELS)
        assert float(found) == pytest.approx(sum(terms[: count + 1]), abs=2e-6)


def test_similarities_of_the_specification_s_example() -> None:
    half = 0.707107
    expected = (
        [(half, 0), (half, half), (0, half)],
        [(half, 0), (half, -half), (0, -half)],
    )
    found = [similarities(matrix(held)) for held in FEATURES]
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-6)
    mean = torch.stack(found).mean(dim=0)
    for temperature, losses in ((1.0, (0.040013, 0.037181)), (0.02, (5.892557, 5.661507))):
        divergences = [float(kl_divergence(one, mean, temperature)) for one in found]
        assert divergences == pytest.approx(losses, abs=1e-6)


@pytest.mark.parametrize(
    ("temperature", "renormalise", "expected"),
    [
        (1.0, False, 0.062123),
        (1.0, True, 0.101361),
        (3.0, False, 0.167421),
        (3.0, True, 0.121648),
    ],
)
def test_other_classes_of_the_specification_s_example(
    temperature: float, renormalise: bool, expected: float
) -> None:
    found = non_target_loss(
        matrix(LOCAL), matrix(LOCAL_PREVIOUS), LABELS, temperature, renormalise=renormalise
    )
    assert float(found) == pytest.approx(expected, abs=1e-6)
    client = local_client(FCCLPlusClient, LOCAL_PREVIOUS)
    client._temperature, client._renormalise = temperature, renormalise
    loss = client.loss(nn.Identity(), matrix(LOCAL), LABELS)
    assert float(loss) == pytest.approx(0.847188 + expected, abs=2e-6)


# What must always hold

LOGITS_OF_BATCH = st.lists(st.integers(-40, 40), min_size=15, max_size=15).map(
    lambda values: matrix(values).reshape(5, 3) / 8
)
SCALES = st.lists(st.floats(0.1, 10), min_size=3, max_size=3)
SHIFTS = st.lists(st.floats(-10, 10), min_size=3, max_size=3)


@given(LOGITS_OF_BATCH, LOGITS_OF_BATCH, SCALES, SHIFTS, st.booleans())
def test_no_map_of_a_class_changes_the_correlation(
    own: Tensor, target: Tensor, scale: list[float], shift: list[float], unbiased: bool
) -> None:
    own, target = own + UNEVEN, target - UNEVEN
    plain = float(correlation_loss(own, target, unbiased=unbiased))
    mapped = own * matrix(scale) + matrix(shift)
    for left, right in ((mapped, target), (target, mapped)):
        expected = (
            plain if right is target else correlation_loss(target, own, unbiased=unbiased)
        )
        found = float(correlation_loss(left, right, unbiased=unbiased))
        assert found == pytest.approx(float(expected), rel=1e-6)


UNEVEN = matrix([[0.01, 0.02, 0.03]]) * torch.arange(5.0, dtype=torch.float64)[:, None] ** 2
"""Keeps each class from being constant over the batch."""


@given(LOGITS_OF_BATCH)
def test_logits_correlate_with_themselves(own: Tensor) -> None:
    own = own + UNEVEN
    biased = cross_correlation(own, own, unbiased=False).diagonal()
    np.testing.assert_allclose(biased, 1, atol=1e-9)
    unbiased = cross_correlation(own, own).diagonal()
    np.testing.assert_allclose(unbiased, 4 / 5, atol=1e-9)


@given(LOGITS_OF_BATCH, LOGITS_OF_BATCH)
def test_the_slope_fixes_neither_scale_nor_offset(own: Tensor, target: Tensor) -> None:
    own = (own + UNEVEN).requires_grad_(True)
    (slope,) = torch.autograd.grad(correlation_loss(own, target + UNEVEN, 1.0), own)
    size = max(1.0, float(slope.abs().max()))
    np.testing.assert_allclose(slope.sum(dim=0), 0, atol=1e-9 * size)
    along = (slope * standardise(own.detach())).sum(dim=0)
    np.testing.assert_allclose(along, 0, atol=1e-9 * size)


def test_the_least_loss_of_clients_that_agree() -> None:
    # Ten classes whose correlations are all -1/9: a simplex around 0.
    simplex = torch.eye(10, dtype=torch.float64) - 0.1
    found = float(correlation_loss(simplex, simplex, unbiased=False))
    assert found == pytest.approx(0.0051 * 10 * 64 / 9, abs=1e-9)
    assert found == pytest.approx(0.362667, abs=1e-6)


def test_no_gradient_flows_into_what_others_said() -> None:
    own = torch.randn(4, 3, requires_grad=True)
    target = torch.randn(4, 3, requires_grad=True)
    correlation_loss(own, target).backward()
    non_target_loss(own, target, torch.tensor([0, 1, 2, 0])).backward()
    assert target.grad is None
    assert own.grad is not None


@pytest.mark.parametrize("column", [(0.1,) * 4, (1e-30, 0, 0, 0)])
def test_a_class_that_is_constant_has_no_correlation(column: tuple[float, ...]) -> None:
    own = torch.tensor(FIXTURE[1], dtype=torch.float32)
    own[:, 1] = torch.tensor(column)
    own.requires_grad_(True)
    assert constant_columns(own.detach()).tolist() == [False, True, False]
    found = cross_correlation(own, MEAN.float())
    assert found[1].tolist() == [0, 0, 0] and found[0].abs().min() > 0
    correlation_loss(own, MEAN.float()).backward()
    assert own.grad is not None and own.grad.isfinite().all()
    assert not own.grad[:, 1].any() and own.grad[:, 0].any()
    assert correlation_loss(MEAN.float(), own.detach()).isfinite()


def test_a_constant_whose_mean_is_rounded_is_constant() -> None:
    held = torch.full((7, 1), 0.3)
    assert bool((held != held.mean(dim=0)).any())
    assert constant_columns(held).tolist() == [True]
    assert standardise(held).abs().max() == 0


@given(LOGITS_OF_BATCH, st.floats(0.01, 100))
def test_the_scale_of_features_is_of_no_consequence(held: Tensor, scale: float) -> None:
    held = held + 0.01
    found = similarities(held)
    np.testing.assert_allclose(similarities(held * scale), found, atol=1e-9)
    assert found.shape == (5, 4)
    assert found.abs().max() <= 1 + 1e-12
    # Row b is of sample b, the others in order.
    by_hand = functional.cosine_similarity(held[2], held[3], dim=0)
    assert float(found[2, 2]) == pytest.approx(float(by_hand), abs=1e-9)
    assert float(found[3, 2]) == pytest.approx(float(by_hand), abs=1e-9)


def test_models_that_agree_on_other_classes() -> None:
    """The value is 0; the slope is 0 where probabilities are made to sum to 1."""
    logits = matrix(LOCAL).requires_grad_(True)
    for renormalise in (False, True):
        loss = non_target_loss(logits, logits, LABELS, 2.0, renormalise=renormalise)
        assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
        (slope,) = torch.autograd.grad(loss, logits)
        if renormalise:
            np.testing.assert_allclose(slope, 0, atol=1e-12)
            continue
        # T p_y (1 - p_y) for the label and -T p_y p_k for others, over the batch of 2.
        p = functional.softmax(logits.detach() / 2, dim=1)
        label = functional.one_hot(LABELS, 3).double()
        of_label = (p * label).sum(dim=1, keepdim=True)
        np.testing.assert_allclose(slope, of_label * (label - p), atol=1e-12)


# Rounds of FCCL


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
    first, _ = fixture_round(), None
    after_one = [torch.from_numpy(m[0]).double() for m in first[1].models()]
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


METHODS = {"fccl": (FCCL, FCCLClient), "fccl-plus": (FCCLPlus, FCCLPlusClient)}


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


# Rounds of FCCL+


@pytest.mark.parametrize(
    ("temperature", "losses"),
    [(1.0, (0.040013, 0.037181)), (0.02, (5.892557, 5.661507))],
)
def test_a_round_with_similarities(temperature: float, losses: tuple[float, float]) -> None:
    builds = [lambda held=held: FeatureTable(held) for held in FEATURES]
    federation = Federation(
        FCCLPlusClient, builds, training=NO_TRAINING, public=NUMBERED[:3]
    )
    for client_id in (0, 1):
        client: Any = federation._client(None, client_id)  # type: ignore[arg-type]
        client.train_data.features.zero_()
        client.test_data = client.train_data
    with torch.no_grad():
        logits = [federation.clients[k].model(NUMBERED[:3]) for k in (0, 1)]
    trace = federation.run(
        strategy_of(
            FCCLPlus,
            2,
            public_rows=3,
            public_batch_size=0,
            transfer_steps=1,
            fccl_plus_similarity_temperature=temperature,
            fccl_plus_similarity_weight=2.0,
        ),
        1,
    )
    mean = torch.stack(logits).mean(dim=0)
    for row, own, divergence in zip(
        trace.reports[0].train.rows, logits, losses, strict=True
    ):
        expected = float(correlation_loss(own, mean)) + 2 * divergence
        assert row["transfer_loss"] == pytest.approx(expected, abs=2e-5)
    for message in federation.grid.arrays(TRANSFER, sent=True):
        shapes = {name: array.shape for name, array in message[MEAN_OUTPUTS].items()}
        assert shapes == {LOGITS: (3, 3), SIMILARITIES: (3, 2)}


def test_without_similarities_a_transfer_is_fccl_s() -> None:
    runs = [Federation(client, training=NO_TRAINING) for _, client in METHODS.values()]
    runs += [Federation(FCCLPlusClient, training=NO_TRAINING)]
    runs[0].run(strategy_of(FCCL))
    runs[1].run(strategy_of(FCCLPlus, fccl_plus_similarity_weight=0.0))
    runs[2].run(strategy_of(FCCLPlus))
    assert_same_models(runs[0], runs[1])
    assert differ(runs[1], runs[2])


def test_each_key_of_fccl_plus_has_a_part() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"fccl_plus_similarity_temperature": 1.0},
        {"fccl_plus_renormalise": True},
        {"distillation_temperature": 1.0},
        {"fccl_off_diagonal": 1.0},
        {"fccl_std": "biased"},
    ]
    runs = [Federation(FCCLPlusClient) for _ in settings]
    for federation, options in zip(runs, settings, strict=True):
        federation.run(strategy_of(FCCLPlus, **options))
    assert all(differ(runs[0], other) for other in runs[1:])


def test_statistics_move_once_an_exchange() -> None:
    federation = Federation(FCCLPlusClient, [normalised, normalised])
    federation.run(strategy_of(FCCLPlus, 2, transfer_steps=3), 2)
    (counter,) = [
        b for n, b in federation.clients[0].model.named_buffers() if "batches" in n
    ]
    assert int(counter) == 2 * (2 + 3)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (LOGITS, np.full((6, 3), np.inf, np.float32), "infinity"),
        (SIMILARITIES, np.full((6, 5), np.nan, np.float32), "NaN"),
        (SIMILARITIES, np.zeros((6, 6), np.float32), "shape"),
        (SIMILARITIES, np.full((6, 5), 1e7, np.float32), "beyond 1e"),
    ],
)
def test_bad_outputs_are_not_used(name: str, value: np.ndarray, reason: str) -> None:
    class Lying(FCCLPlusClient):
        def outputs_without_trace(self, request: Any, step: int) -> Any:
            found = super().outputs_without_trace(request, step)
            lie = {name: torch.from_numpy(value)}
            return found | lie if self.client_id == 1 else found

    trace = Federation(Lying).run(strategy_of(FCCLPlus), 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1
    assert reason in rejection.reason


def test_a_similarity_counts_for_1_at_most() -> None:
    strategy = strategy_of(FCCLPlus)
    outputs = {
        k: {
            LOGITS: np.ones((6, 3), np.float32),
            SIMILARITIES: np.full((6, 5), value, np.float32),
        }
        for k, value in enumerate((0.5, -1e5))
    }
    found = strategy.feedback(outputs, 0).shared[MEAN_OUTPUTS][SIMILARITIES]
    np.testing.assert_allclose(found, np.full((6, 5), -0.25))


def test_nothing_but_outputs_travels() -> None:
    federation = Federation(FCCLPlusClient, MIXED, training=ADAM)
    trace = federation.run(strategy_of(FCCLPlus), 2)
    size = (6 * 3 + 6 * 5) * 4
    assert [r.train.bytes_up for r in trace.reports] == [6 * size] * 2
    assert [r.train.bytes_down for r in trace.reports] == [6 * size] * 2
    for reply in federation.grid.arrays(TRANSFER, sent=False):
        assert all(name.endswith(OUTPUTS) for name in reply)
    assert all(not arrays for arrays in trace.arrays)
    assert len(trace.reports[-1].evaluate.rows) == 3


def test_a_table_is_no_network_with_features() -> None:
    """Its outputs come from no linear layer: the client says so."""
    federation = tables(FCCLPlusClient)
    with pytest.raises(Exception, match="linear"):
        federation.run(tables_strategy(FCCLPlus, max_failed_rounds=1), 1)
    assert isinstance(federation.clients[0].model, Table)
