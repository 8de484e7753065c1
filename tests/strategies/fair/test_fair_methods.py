"""What all the fair baselines have in common, on their real clients."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsuite
from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.fair.probed import ProbedClient
from fedsuite.core.errors import RunError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.core.vectors import norm
from fedsuite.data import Split
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, SERVER_ROUND, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.aggregation import weighted_mean
from fedsuite.rounds.all_replies import GatheredStrategy
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.updates import (
    client_updates,
    flatten,
    inner,
    parameter_names,
    take_step,
)
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.feddisco import FedDISCO
from fedsuite.strategies.averaging.fedwavg import FedwAvg
from fedsuite.strategies.fair.aaggff import AAggFF
from fedsuite.strategies.fair.afl import AFL
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.fedfv import FedFV
from fedsuite.strategies.fair.fedmgda_plus import FedMGDAPlus
from fedsuite.strategies.fair.qffl import QFFL
from fedsuite.strategies.fair.term import TERM
from fedsuite.training.loop import TrainingOptions
from tests.helpers import (
    MatrixClient,
    TamperingGrid,
    bits,
    final_bits,
    matrix_app,
    run,
)
from tests.small_runs import final_model
from tests.strategies.fair.fair_rounds import (
    EXAMPLES,
    FEDAVG,
    LOSSES,
    MODELS,
    PLAIN_MEAN,
    fair_round,
    final,
    shares,
    three,
)

BASELINES = Path(__file__).parents[3] / "simulations" / "fedeba" / "baselines"

SETTINGS: dict[str, dict[str, Value]] = {
    "qffl": {},
    "fedfv": {"fedfv-tau": 2},
    "term": {},
    "afl": {},
    "propfair": {},
    "fedmgda-plus": {"fedmgda-step-decay": 0.5},
    "aaggff": {},
    "fedwavg": {"fedwavg-every": 2},
    "feddisco": {"partitioner": "dirichlet"},
}
"""Each fair method, with what makes it remember more than one round."""

LOSS_METHODS = ("qffl", "fedfv", "term", "afl", "aaggff")


def small(method: str, folder: Path, name: str, **changes: Value) -> dict[str, Value]:
    values: dict[str, Value] = {
        "method": method,
        "dataset": "digits",
        "model": "linear",
        "partitioner": "shards",
        "num-clients": 5,
        "clients-per-round": 3,
        "num-rounds": 6,
        "checkpoint-every": 2,
        "evaluate-every": 3,
        "local-steps": 2,
        "learning-rate-decay": 0.9,
        "report": False,
        "output-dir": str(folder),
        "run-name": name,
    }
    return values | SETTINGS[method] | changes


def rows_of(folder: Path, name: str) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").open()]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


@pytest.mark.parametrize("method", SETTINGS)
def test_resumed_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    whole = fedsuite.run(small(method, tmp_path, "whole")).path
    part = fedsuite.run(small(method, tmp_path, "part", **{"num-rounds": 4})).path
    assert final_model(part) != final_model(whole)
    fedsuite.resume(part, num_rounds=6)
    assert final_model(part) == final_model(whole)
    found, expected = rows_of(part, "rounds"), rows_of(whole, "rounds")
    # Round 4 was the last one once, and was evaluated.
    assert found[:3] + found[4:] == expected[:3] + expected[4:]


@pytest.mark.parametrize("method", SETTINGS)
def test_same_bits_on_fewer_nodes(method: str, tmp_path: Path) -> None:
    models = [
        final_model(
            fedsuite.run(small(method, tmp_path, f"n{nodes}"), num_supernodes=nodes).path
        )
        for nodes in (5, 2)
    ]
    assert models[0] == models[1]


@pytest.mark.parametrize("method", SETTINGS)
def test_method_differs_from_fedavg(method: str) -> None:
    changes = {name.replace("-", "_"): v for name, v in SETTINGS[method].items()}
    assert final_bits(method=method, **changes) != final_bits()


@pytest.mark.parametrize("method", SETTINGS)
def test_experiment_of_the_paper_loads(method: str) -> None:
    experiment = Experiment.load(BASELINES / f"{method}.toml")
    assert experiment["method"] == method
    expected = {
        "dataset": "fashion-mnist",
        "scaling": "unit",
        "num-clients": 100,
        "clients-per-round": 10,
        "num-rounds": 2000,
        "local-steps": 10,
        "batch-size": 50,
        "learning-rate": 0.1,
        "learning-rate-decay": 0.999,
        "evaluate-every": 10,
        "checkpoint-every": 100,
    }
    assert {name: experiment[name] for name in expected} == expected
    # Tuned values are written down, not left to the defaults.
    text = (BASELINES / f"{method}.toml").read_text()
    numbers = [
        key
        for key in load_strategy(METHODS[method]).method_keys()
        if not key.choices and key.name != "max-share-ratio"
    ]
    assert any(key.name in text for key in numbers) or not numbers


def test_every_file_is_of_a_fair_method() -> None:
    assert {path.stem for path in BASELINES.glob("*.toml")} == set(SETTINGS)


# ---- methods against each other


@pytest.mark.parametrize("tilt", [0.1, 1.0, 5.0])
def test_term_is_fedeba_by_the_losses_before(tilt: float) -> None:
    """TERM's tilt is FedEBA's inverse temperature; prior and losses alike."""
    entropy = FedEBA.of_paper(
        temperature=1 / tilt, aggregation_losses="before", size_prior=True, **three()
    )
    other = fair_round(entropy, extra=lambda client: {"loss-after": 0.0})
    term = fair_round(TERM(term_tilt=tilt, **three()))
    assert shares(term) == pytest.approx(shares(other), rel=1e-9)
    np.testing.assert_allclose(final(term), final(other), atol=1e-7)


def test_extremes_meet() -> None:
    """q-FFL, AFL and AAggFF at rest are one plain mean; the by-size methods are FedAvg."""
    plain = [
        QFFL(qffl_q=0.0, **three()),
        AFL(afl_step=0.0, **three()),
        FedFV(fedfv_alpha=1.0, fedfv_tau=0, **three()),
    ]
    for strategy in plain:
        np.testing.assert_allclose(final(fair_round(strategy)), PLAIN_MEAN, atol=1e-8)
    told = {"forgotten": 3.0, "discrepancy": 0.5}
    by_size = [
        TERM(term_tilt=0.0, **three()),
        FedwAvg(fedwavg_alpha=0.0, **three()),
        FedDISCO(feddisco_a=0.0, feddisco_b=0.0, **three()),
    ]
    for strategy in by_size:
        trace = fair_round(strategy, extra=lambda client: told)
        np.testing.assert_allclose(final(trace), FEDAVG, atol=1e-8)


ORDER = (2, 0, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: QFFL(qffl_q=2.0, **o),
        lambda **o: FedFV(fedfv_alpha=0.1, fedfv_tau=0, **o),
        lambda **o: TERM(**o),
        lambda **o: AFL(afl_step=0.2, **o),
        lambda **o: FedMGDAPlus(**o),
        lambda **o: AAggFF(**o),
        lambda **o: AAggFF(aaggff_setting="cross-silo", **o),
        lambda **o: FedwAvg(**o),
        lambda **o: FedDISCO(**o),
    ],
)
def test_order_of_clients_does_not_matter(make: Callable[..., FederatedStrategy]) -> None:
    def told(client: int) -> dict[str, float]:
        return {"forgotten": client + 1.0, "discrepancy": 0.3 * client}

    one = fair_round(make(**three()), extra=told, num_rounds=2)
    other = fair_round(
        make(**three()),
        models=[MODELS[k] for k in ORDER],
        losses=[LOSSES[k] for k in ORDER],
        examples=[EXAMPLES[k] for k in ORDER],
        extra=lambda client: told(ORDER[client]),
        num_rounds=2,
    )
    np.testing.assert_allclose(final(one), final(other), atol=2e-6)


# ---- the probe


def features(seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(12, 3, generator=generator)
    return Split(values, (values[:, 0] > 0).long())


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4),
            torch.nn.BatchNorm1d(4),
            torch.nn.Dropout(),
            torch.nn.Linear(4, 2),
        )


def train(client_class: type) -> tuple[dict[str, bytes], dict[str, float]]:
    model = network()
    training = TrainingOptions(
        local_steps=3, batch_size=4, learning_rate=0.2, learning_rate_decay=0.5
    )
    client = client_class(model, features(1), features(2), training=training)
    arrays = model_arrays(network())
    reply = client.on_train(Request("train", 0, {ARRAYS: arrays}, {SERVER_ROUND: 3}))
    return bits(reply.arrays[ARRAYS]), dict(reply.metrics)


def test_probe_leaves_no_trace_and_tells_loss_and_rate() -> None:
    plain, plain_metrics = train(FedAvgClient)
    probed, metrics = train(ProbedClient)
    assert probed == plain
    before = metrics.pop("loss-before")
    assert metrics.pop("learning-rate") == 0.2 * 0.5**2
    assert metrics == plain_metrics
    # The loss of the received model, in evaluation mode, over all of the training data.
    model, data = network().eval(), features(1)
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(model(data.features), data.labels)
    assert before == pytest.approx(float(expected), rel=1e-6)
    assert before != pytest.approx(metrics["loss"], rel=1e-3)


@pytest.mark.parametrize("method", LOSS_METHODS)
def test_client_that_does_not_probe_is_named(method: str) -> None:
    strategy = load_strategy(METHODS[method])(**three(max_failed_rounds=9))
    with pytest.raises(RunError, match=r"'loss-before' is missing.*as loss_before_key"):
        run(strategy, TamperingGrid(matrix_app(MatrixClient), 3))


def test_other_loss_key() -> None:
    """A stranger's name for the loss; the usual one is then not needed, nor used."""
    trace = fair_round(
        TERM.of_paper(term_tilt=1e6, loss_before_key="initial_loss", **three()),
        extra=lambda client: {"initial_loss": 5.0 - client},
    )
    np.testing.assert_allclose(final(trace), [0.2, 0.0])


# ---- the base class


def test_a_round_without_examples_keeps_the_model() -> None:
    trace = fair_round(TERM(**three()), examples=(0, 0, 0), start=(1.0, 2.0))
    np.testing.assert_array_equal(final(trace), [1, 2])


def test_weights_are_shares_in_the_report() -> None:
    """e^0 : 2 e^0 : e^0 at tilt 0; 1 / (1/16 + 1/4 + 1/16) = 8/3 effective clients."""
    trace = fair_round(TERM(term_tilt=0.0, **three()))
    rows = trace.reports[0].train.rows
    assert [row["weight"] for row in rows] == [0.25, 0.5, 0.25]
    assert trace.reports[0].metrics["effective_clients"] == pytest.approx(8 / 3)


def test_base_has_no_rule_of_its_own() -> None:
    with pytest.raises(TypeError, match="combine"):
        GatheredStrategy()


# ---- updates as vectors


def replies_of(*models: dict[str, np.ndarray]) -> list[ClientReply]:
    return [
        ClientReply(k, {ARRAYS: model}, {}, float(k + 1)) for k, model in enumerate(models)
    ]


def test_buffers_are_averaged_as_in_fedavg_and_have_no_angle() -> None:
    arrays = model_arrays(network())
    assert parameter_names(arrays) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    ]
    models = [{name: array + 3 for name, array in arrays.items()}, arrays]
    replies = replies_of(*models)
    updates = client_updates(arrays, replies)
    assert updates.shape == (2, 12 + 4 + 4 + 4 + 8 + 2)
    np.testing.assert_allclose(updates, [[-3.0] * 34, [0.0] * 34], atol=1e-6)
    moved = take_step(arrays, np.arange(34.0), replies)
    assert {n: (a.dtype, a.shape) for n, a in moved.items()} == {
        n: (a.dtype, a.shape) for n, a in arrays.items()
    }
    assert list(moved) == list(arrays)
    buffers = weighted_mean(models, [1.0, 2.0])
    assert buffers is not None
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        np.testing.assert_array_equal(moved[name], buffers[name])
    names = parameter_names(arrays)
    np.testing.assert_allclose(
        flatten(moved, names), flatten(arrays, names) - np.arange(34.0), rtol=1e-6
    )


def test_lengths_are_in_float64() -> None:
    tiny = np.full(10, 1e-30, dtype=np.float32)
    assert inner(tiny, tiny) / 1e-59 == pytest.approx(1.0)
    assert norm(np.array([3.0, 4.0])) == 5.0
