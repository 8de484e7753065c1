"""What FedEBA+ sends, what its probe leaves behind, and how it takes failures."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedsuite.clients.app import make_client_app
from fedsuite.clients.base import FederatedClient
from fedsuite.clients.fedeba import FedEBAClient, FedEBAPlusClient
from fedsuite.clients.training import TrainingOptions
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid, flower_identity
from fedsuite.errors import RunError
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.records import (
    ARRAYS,
    GRADIENT,
    NUM_EXAMPLES,
    PROBE,
    TRAIN,
    Arrays,
    Reply,
    Request,
    to_arrays,
    to_record,
)
from fedsuite.rng import torch_stream
from fedsuite.strategies.base import FederatedStrategy
from fedsuite.strategies.fedeba import FedEBA, entropy_weights
from fedsuite.strategies.fedeba_plus import FedEBAPlus, PracFedEBAPlus
from tests.strategies.quadratic import ProbedQuadratic, options, start

NUM_CLIENTS = 4


def network() -> nn.Module:
    """Return a net with everything that a probe could disturb: dropout and batch norm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2)
        )


def split_of(client_id: int) -> Split:
    generator = torch_stream(3, "made-data", 0, client_id)
    features = torch.randn(20 + 4 * client_id, 3, generator=generator)
    return Split(features, (features[:, 0] > 0.3 * client_id).long())


def client_of(client_class: type[FederatedClient], client_id: int = 0) -> FederatedClient:
    data = split_of(client_id)
    training = TrainingOptions(local_steps=4, batch_size=8)
    return client_class(network(), data, data, training=training, client_id=client_id)


class WatchingGrid(LocalGrid):
    """Notes what is sent: message type, node, array records."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent: list[tuple[str, int, list[str]]] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        messages = list(messages)
        for message in messages:
            names = sorted(message.content.array_records)
            node = message.metadata.dst_node_id - 1000
            self.sent.append((message.metadata.message_type, node, names))
        return super().send_and_receive(messages, timeout=timeout)

    def nodes_of(self, message_type: str) -> list[int]:
        return [node for kind, node, _ in self.sent if kind == message_type]


def run(
    strategy: FederatedStrategy,
    client_class: type[FederatedClient] = FedEBAPlusClient,
    num_rounds: int = 2,
) -> tuple[Arrays, WatchingGrid]:
    def client_fn(context: Context, client_id: int) -> FederatedClient:
        return client_of(client_class, client_id)

    with flower_identity():
        app = make_client_app(client_fn, list(client_class.ACTIONS))
        grid = WatchingGrid(app, NUM_CLIENTS)
        initial = to_record(model_arrays(network()))
        result = strategy.start(grid, initial, num_rounds)
    return to_arrays(result.arrays), grid


def made(strategy_class: Any, **changes: Any) -> Any:
    return strategy_class(
        **{"fraction_evaluate": 0.0, "min_available_nodes": NUM_CLIENTS, **changes}
    )


def assert_same(left: Arrays, right: Arrays) -> None:
    assert list(left) == list(right)
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def assert_close(left: Arrays, right: Arrays) -> None:
    assert list(left) == list(right)
    for name, array in left.items():
        np.testing.assert_allclose(array, right[name], atol=2e-6, err_msg=name)


# ---- T12: the probe leaves no trace


@pytest.mark.parametrize("with_gradient", [False, True])
def test_probe_leaves_no_trace(with_gradient: bool) -> None:
    client, untouched = client_of(FedEBAPlusClient), client_of(FedEBAPlusClient)
    arrays = model_arrays(network())
    arrays["1.running_mean"] = arrays["1.running_mean"] + np.float32(0.5)
    received = {name: array.copy() for name, array in arrays.items()}
    probe = Request(PROBE, 0, {ARRAYS: arrays}, {"report-gradient": with_gradient})
    before = torch.random.get_rng_state()
    assert isinstance(client, FedEBAPlusClient)
    first, second = client.on_probe(probe), client.on_probe(probe)
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.metrics == second.metrics
    assert_same(arrays, received)
    assert_same(model_arrays(client.model), received)
    assert all(parameter.grad is None for parameter in client.model.parameters())
    train = Request(TRAIN, 0, {ARRAYS: arrays}, {"report-first-step": True})
    reply, reference = client.on_train(train), untouched.on_train(train)
    assert reply.metrics == reference.metrics
    for name in (ARRAYS, "first-step"):
        assert_same(reply.arrays[name], reference.arrays[name])


def test_probed_gradient_is_that_of_the_probed_loss() -> None:
    client = client_of(FedEBAPlusClient)
    assert isinstance(client, FedEBAPlusClient)
    arrays = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in model_arrays(network()).items()
    }
    client.model.double()
    data = client.train_data
    client.train_data = Split(data.features.double(), data.labels)

    def loss_at(step: float) -> float:
        moved = {**arrays, "4.bias": arrays["4.bias"] + np.array([step, 0.0])}
        reply = client.on_probe(Request(PROBE, 0, {ARRAYS: moved}))
        return float(reply.metrics["loss-before"])  # type: ignore[arg-type]

    config: Any = {"report-gradient": True}
    reply = client.on_probe(Request(PROBE, 0, {ARRAYS: arrays}, config))
    gradient = reply.arrays[GRADIENT]
    slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
    assert gradient["4.bias"][0] == pytest.approx(slope, rel=1e-6)
    # Names and dtypes are the model's; what is not trained has gradient 0.
    assert {n: a.dtype for n, a in gradient.items()} == {
        n: a.dtype for n, a in arrays.items()
    }
    assert not gradient["1.running_var"].any()
    assert not gradient["1.num_batches_tracked"].any()


def test_frozen_parameters_stay_and_have_no_gradient() -> None:
    client = client_of(FedEBAPlusClient)
    assert isinstance(client, FedEBAPlusClient)
    client.model[0].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    arrays = model_arrays(network())
    config: Any = {"report-gradient": True}
    gradient = client.on_probe(Request(PROBE, 0, {ARRAYS: arrays}, config)).arrays[GRADIENT]
    assert not gradient["0.weight"].any()
    fair = {name: np.ones_like(array) for name, array in arrays.items()}
    train = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": fair}, {"alpha": 0.5})
    trained = client.on_train(train).arrays[ARRAYS]
    np.testing.assert_array_equal(trained["0.weight"], arrays["0.weight"])
    assert (trained["4.weight"] != arrays["4.weight"]).all()


def test_a_client_keeps_neither_fair_gradient_nor_first_step() -> None:
    client = client_of(FedEBAPlusClient)
    arrays = model_arrays(network())
    plain = Request(TRAIN, 0, {ARRAYS: arrays})
    expected = client.on_train(plain).arrays[ARRAYS]
    fair = {name: np.ones_like(array) for name, array in arrays.items()}
    aligned = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": fair}, {"alpha": 0.5})
    assert (client.on_train(aligned).arrays[ARRAYS]["4.bias"] != expected["4.bias"]).any()
    assert_same(client.on_train(plain).arrays[ARRAYS], expected)

    config: Any = {"report-first-step": True}
    client.on_train(Request(TRAIN, 0, {ARRAYS: arrays}, config))
    held = [value for value in vars(client).values() if isinstance(value, dict)]
    assert held == [{}, {}]


class Noisy(FedEBAPlusClient):
    """Its loss draws from torch's global stream, as augmentation does."""

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return super().loss(model, features + 0.1 * torch.randn(features.shape), labels)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_a_probe_of_a_random_loss_is_repeatable(with_gradient: bool) -> None:
    client = client_of(Noisy)
    assert isinstance(client, Noisy)
    arrays = model_arrays(network())
    probe = Request(PROBE, 0, {ARRAYS: arrays}, {"report-gradient": with_gradient})
    before = torch.random.get_rng_state()
    first = client.on_probe(probe)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(1)
    assert client.on_probe(probe).metrics == first.metrics


def test_a_parameter_that_the_loss_does_not_reach_follows_the_fair_gradient() -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.spare = nn.Parameter(torch.ones(2))

    data = split_of(0)
    training = TrainingOptions(local_steps=4, batch_size=8, learning_rate=0.1)
    client = FedEBAPlusClient(Spare(), data, data, training=training)
    arrays = model_arrays(client.model)
    config: Any = {"report-gradient": True}
    gradient = client.on_probe(Request(PROBE, 0, {ARRAYS: arrays}, config)).arrays[GRADIENT]
    assert not gradient["spare"].any()
    fair = {**gradient, "spare": np.array([1.0, -1.0], np.float32)}
    request = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": fair}, {"alpha": 0.5})
    trained = client.on_train(request).arrays[ARRAYS]["spare"]
    np.testing.assert_allclose(trained, [1 - 4 * 0.1 * 0.5, 1 + 4 * 0.1 * 0.5], rtol=1e-6)


def test_a_fair_gradient_without_alpha_is_refused() -> None:
    arrays = model_arrays(network())
    request = Request(TRAIN, 0, {ARRAYS: arrays, "fair-gradient": arrays})
    with pytest.raises(RunError, match="no number alpha"):
        client_of(FedEBAPlusClient).on_train(request)


def test_first_step_has_first_parameters_and_last_buffers() -> None:
    client, one_step = client_of(FedEBAPlusClient), client_of(FedEBAPlusClient)
    one_step.training = TrainingOptions(local_steps=1, batch_size=8)
    arrays = model_arrays(network())
    config: Any = {"report-first-step": True}
    reply = client.on_train(Request(TRAIN, 0, {ARRAYS: arrays}, config))
    expected = one_step.on_train(Request(TRAIN, 0, {ARRAYS: arrays})).arrays[ARRAYS]
    buffers = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    for name, array in reply.arrays["first-step"].items():
        source = reply.arrays[ARRAYS] if name in buffers else expected
        np.testing.assert_array_equal(array, source[name], err_msg=name)
    config["rescale-first-step"] = True
    scaled = client.on_train(Request(TRAIN, 0, {ARRAYS: arrays}, config)).arrays[
        "first-step"
    ]
    first = arrays["4.bias"] + 4 * (expected["4.bias"] - arrays["4.bias"])
    np.testing.assert_allclose(scaled["4.bias"], first, rtol=1e-6)
    np.testing.assert_array_equal(
        scaled["1.running_var"], reply.arrays[ARRAYS]["1.running_var"]
    )


# ---- T10 (a): alpha 0


def test_alpha_0_makes_all_variants_fedeba() -> None:
    common: Any = {"temperature": 0.5}
    reference, _ = run(made(FedEBA, **common), FedEBAClient, 3)
    for theta in (0.0, 1.0, 90.0):
        plus, _ = run(made(FedEBAPlus, alpha=0.0, theta=theta, **common), num_rounds=3)
        assert_close(plus, reference)
        prac, _ = run(
            made(PracFedEBAPlus, alpha=0.0, theta=theta, **common), FedEBAClient, 3
        )
        assert_close(prac, reference)


# ---- T13: protocol


def test_one_sample_of_clients_serves_all_exchanges_of_a_round() -> None:
    strategy = made(FedEBAPlus, theta=0.5, clients_per_round=2)
    _, grid = run(strategy, num_rounds=1)
    assert strategy.round_metrics["branch"] == 1.0
    kinds = [kind for kind, _, _ in grid.sent]
    assert kinds == [PROBE, PROBE, PROBE, PROBE, TRAIN, TRAIN]
    chosen = grid.nodes_of(TRAIN)
    assert len(set(chosen)) == 2
    assert grid.nodes_of(PROBE) == chosen * 2


@pytest.mark.parametrize(
    ("theta", "exchanges", "down", "up", "paper"),
    [
        (0.0, 2, 3, 2, 2),  # eager: model; model and fair gradient | gradient; model
        (0.5, 3, 4, 2, 2),  # lazy: one more model down
        (90.0, 2, 2, 2, 1),  # model branch: model twice | model and first step
    ],
)
def test_bytes_of_a_round(
    theta: float, exchanges: int, down: int, up: int, paper: int
) -> None:
    strategy = made(FedEBAPlus, theta=theta)
    _, grid = run(strategy, num_rounds=1)
    gradient_branch = theta < 90
    assert strategy.round_metrics["branch"] == float(gradient_branch)
    assert len(grid.sent) == exchanges * NUM_CLIENTS
    fair = ["fair-gradient" in names for kind, _, names in grid.sent if kind == TRAIN]
    assert fair == [gradient_branch] * NUM_CLIENTS
    report = strategy.reports["train"]
    unit = NUM_CLIENTS * sum(array.nbytes for array in model_arrays(network()).values())
    assert (report.bytes_down, report.bytes_up) == (down * unit, up * unit)
    assert strategy.round_metrics["bytes_train"] == (down + up) * unit
    assert strategy.round_metrics["bytes_paper"] == paper * unit


def test_paper_s_extra_cost_is_a_over_1_plus_a() -> None:
    """A share a of rounds in the gradient branch costs a / (1 + a) of the traffic."""

    class Alternating(FedEBAPlus):
        def choose_branch(self, losses: Sequence[float]) -> bool:
            super().choose_branch(losses)
            return self.server_round % 4 == 0

        def finish_round(self) -> None:
            super().finish_round()
            costs.append(self.round_metrics["bytes_paper"])

    costs: list[float] = []
    run(made(Alternating, theta=0.0), num_rounds=8)
    unit = min(costs)
    assert sum(cost - unit for cost in costs) / sum(costs) == pytest.approx(0.25 / 1.25)


def test_fedeba_and_prac_make_the_one_exchange_of_fedavg() -> None:
    unit = NUM_CLIENTS * sum(array.nbytes for array in model_arrays(network()).values())
    for strategy in (made(FedEBA), made(PracFedEBAPlus, theta=0.0)):
        _, grid = run(strategy, FedEBAClient, 1)
        assert [kind for kind, _, _ in grid.sent] == [TRAIN] * NUM_CLIENTS
        assert strategy.round_metrics["bytes_train"] == 2 * unit
        assert strategy.round_metrics["bytes_paper"] == unit


def test_report_has_a_row_for_each_client_and_sums_to_one() -> None:
    for strategy, client_class in (
        (made(FedEBAPlus, theta=0.0), FedEBAPlusClient),
        (made(FedEBAPlus, theta=90.0), FedEBAPlusClient),
        (made(PracFedEBAPlus), FedEBAClient),
    ):
        run(strategy, client_class)
        rows = strategy.reports["train"].rows
        assert len(rows) == NUM_CLIENTS
        for name in ("weight", "fair_weight"):
            assert sum(float(row[name]) for row in rows) == pytest.approx(1.0, abs=1e-12)
        before = [float(row["loss_before"]) for row in rows]
        after = [float(row["loss_after"]) for row in rows]
        assert all(b > a > 0 for a, b in zip(after, before, strict=True))
        weights = [float(row["weight"]) for row in rows]
        np.testing.assert_allclose(weights, entropy_weights(after, 0.1), rtol=1e-12)
        fair = [float(row["fair_weight"]) for row in rows]
        np.testing.assert_allclose(fair, entropy_weights(before, 0.1), rtol=1e-12)


def test_size_prior_at_a_large_temperature_is_fedavg() -> None:
    from fedsuite.strategies.fedavg import FedAvg

    expected, _ = run(made(FedAvg), FedEBAClient)
    found, _ = run(made(FedEBA, temperature=1e9, size_prior=True), FedEBAClient)
    assert_close(found, expected)
    uniform, _ = run(made(FedEBA, temperature=1e9), FedEBAClient)
    assert (uniform["4.weight"] != expected["4.weight"]).any()


# ---- hostile clients


class Failing(FedEBAPlusClient):
    """Fails where its number stands in FAIL: message type to client ids."""

    FAIL: dict[str, set[int]] = {}  # noqa: RUF012

    def on_probe(self, request: Request) -> Reply:
        kind = "gradient" if request.config.get("report-gradient") else "loss"
        if self.client_id in self.FAIL.get(kind, set()):
            raise RuntimeError("lost")
        return super().on_probe(request)

    def on_train(self, request: Request) -> Reply:
        if self.client_id in self.FAIL.get("train", set()):
            raise RuntimeError("lost")
        return super().on_train(request)


def failing(**fail: set[int]) -> type[Failing]:
    return type("FailingHere", (Failing,), {"FAIL": fail})


@pytest.mark.parametrize("theta", [0.0, 0.5, 90.0])
def test_a_client_lost_between_probe_and_training_is_left_out(theta: float) -> None:
    strategy = made(FedEBAPlus, theta=theta)
    final, grid = run(strategy, failing(train={1}), 1)
    report = strategy.reports["train"]
    assert [row["client"] for row in report.rows] == [1000, 1002, 1003]
    assert sum(report.column("weight")) == pytest.approx(1.0, abs=1e-12)
    # The fair gradient stays as it was made, with the lost client in it.
    assert sum(report.column("fair_weight")) < 1 - 1e-6
    assert grid.nodes_of(TRAIN) == [0, 1, 2, 3]
    assert all(np.isfinite(array).all() for array in final.values())


def test_a_client_that_fails_the_probe_is_not_asked_to_train() -> None:
    strategy = made(FedEBAPlus, theta=0.5)
    _, grid = run(strategy, failing(loss={2}), 1)
    assert grid.nodes_of(TRAIN) == [0, 1, 3]
    assert sum(strategy.reports["train"].column("fair_weight")) == pytest.approx(1.0)
    assert len(strategy.reports["train"].rejections) == 1


def test_a_client_that_fails_the_gradient_still_trains() -> None:
    strategy = made(FedEBAPlus, theta=0.5)
    _, grid = run(strategy, failing(gradient={0}), 1)
    assert grid.nodes_of(TRAIN) == [0, 1, 2, 3]
    rows = strategy.reports["train"].rows
    assert ["fair_weight" in row for row in rows] == [False, True, True, True]
    fair = sum(strategy.reports["train"].column("fair_weight"))
    assert fair == pytest.approx(1.0, abs=1e-12)
    assert sum(strategy.reports["train"].column("weight")) == pytest.approx(1.0)


@pytest.mark.parametrize("stage", ["loss", "gradient", "train"])
def test_a_round_in_which_all_fail_keeps_the_model(stage: str) -> None:
    strategy = made(FedEBAPlus, theta=0.5, max_failed_rounds=5)
    final, _ = run(strategy, failing(**{stage: {0, 1, 2, 3}}), 2)
    assert_same(final, model_arrays(network()))
    assert strategy.quorum.failed_rounds == 2


class Bragging(FedEBAPlusClient):
    """Client 0 reports a false loss."""

    FALSE = 0.0

    def full_loss(self, request: Request) -> float:
        return self.FALSE if self.client_id == 0 else super().full_loss(request)


@pytest.mark.parametrize("false", [1e308, 0.0, -5.0])
@pytest.mark.parametrize("strategy_class", [FedEBA, FedEBAPlus, PracFedEBAPlus])
def test_false_losses_are_survived(strategy_class: Any, false: float) -> None:
    client_class = type("BraggingHere", (Bragging,), {"FALSE": false})
    changes = {} if strategy_class is FedEBA else {"theta": 20.0}
    strategy = made(strategy_class, **changes)
    final, _ = run(strategy, client_class, 1)
    assert all(np.isfinite(array).all() for array in final.values())
    weight = strategy.reports["train"].column("weight")[0]
    assert weight == pytest.approx(1.0) if false > 1 else weight < 0.25


def test_a_clip_bounds_what_a_false_loss_can_get() -> None:
    client_class = type("BraggingHere", (Bragging,), {"FALSE": 1e308})
    strategy = made(FedEBA, loss_clip=1.0, temperature=1.0)
    run(strategy, client_class, 1)
    # At most e^1 times the weight of a client without loss.
    assert strategy.reports["train"].column("weight")[0] < np.e / (np.e + 3)


@pytest.mark.parametrize("strategy_class", [FedEBA, FedEBAPlus, PracFedEBAPlus])
def test_a_ratio_bounds_what_a_false_loss_can_get(strategy_class: Any) -> None:
    """Client 0 inflates its loss to take the round: with the option it cannot."""
    client_class = type("BraggingHere", (Bragging,), {"FALSE": 1e308})
    honest = made(strategy_class, temperature=1.0)
    run(honest, FedEBAPlusClient, 1)
    taken = made(strategy_class, temperature=1.0)
    run(taken, client_class, 1)
    bounded = made(strategy_class, temperature=1.0, max_loss_ratio=1.5)
    run(bounded, client_class, 1)
    weights = [s.reports["train"].column("weight")[0] for s in (honest, taken, bounded)]
    losses = honest.reports["train"].column("loss_after")[1:]
    assert weights[1] == pytest.approx(1.0)
    # At most that of a client at 1.5 times the others' largest loss.
    most = np.exp(1.5 * max(losses))
    assert weights[2] <= most / (most + sum(map(np.exp, losses))) < 0.7
    # Large enough a ratio leaves honest rounds as they are, bit for bit.
    loose = made(strategy_class, temperature=1.0, max_loss_ratio=1e6)
    final, _ = run(loose, FedEBAPlusClient, 1)
    reference, _ = run(made(strategy_class, temperature=1.0), FedEBAPlusClient, 1)
    assert_same(final, reference)


def test_a_loss_that_is_no_number_is_refused() -> None:
    client_class = type("BraggingHere", (Bragging,), {"FALSE": float("nan")})
    strategy = made(FedEBA)
    run(strategy, client_class, 1)
    assert [r.client_id for r in strategy.reports["train"].rejections] == [1000]
    assert strategy.reports["train"].rejections[0].reason == "metric loss-after is nan"


def test_all_losses_zero_is_a_fair_round() -> None:
    class Perfect(ProbedQuadratic):
        def full_loss(self, request: Request) -> float:
            return 0.0

    strategy = FedEBAPlus(**options(alpha=0.5, theta=10.0))
    assert start(strategy, -1.0, client_class=Perfect) == pytest.approx(
        -1 + 0.5 * 0.39375 + 0.5 * 0.225
    )
    assert strategy.round_metrics["angle"] == 0.0


class Claiming(FedEBAPlusClient):
    """Client 0 says that it has no examples."""

    def _claim(self, reply: Reply) -> Reply:
        count = 0 if self.client_id == 0 else reply.metrics[NUM_EXAMPLES]
        return Reply(reply.arrays, {**reply.metrics, NUM_EXAMPLES: count})

    def on_probe(self, request: Request) -> Reply:
        return self._claim(super().on_probe(request))

    def on_train(self, request: Request) -> Reply:
        return self._claim(super().on_train(request))


def test_clients_without_examples_have_no_weight() -> None:
    for strategy in (made(FedEBA, temperature=1e9), made(PracFedEBAPlus)):
        run(strategy, Claiming, 1)
        rows = strategy.reports["train"].rows
        assert ["weight" in row for row in rows] == [False, True, True, True]
        assert sum(strategy.reports["train"].column("weight")) == pytest.approx(1.0)
    plus = made(FedEBAPlus)
    _, grid = run(plus, Claiming, 1)
    assert grid.nodes_of(TRAIN) == [1, 2, 3]


# ---- other people's clients


def test_a_client_without_the_probe_is_told_what_to_add() -> None:
    strategy = made(FedEBAPlus, max_failed_rounds=1)
    with pytest.raises(RunError) as caught:
        run(strategy, FedEBAClient)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("query.probe", "loss-before", "@app.query('probe')", "PracFedEBAPlus"):
        assert part in message


def test_legacy_clients_cannot_be_probed() -> None:
    with pytest.raises(ValueError, match=r"NumPyClient cannot answer query\.probe"):
        FedEBAPlus(wire="numpy")


class OneLoss(FederatedClient):
    """A stranger's client: a loss of its own name, and nothing about steps."""

    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        summary = self.train_locally(request)
        metrics = {NUM_EXAMPLES: len(self.train_data), "train_loss": summary.loss}
        return Reply({ARRAYS: model_arrays(self.model)}, metrics)


def test_a_missing_loss_is_named_with_what_is_there() -> None:
    strategy = made(FedEBA, max_failed_rounds=1)
    with pytest.raises(RunError, match=r"loss-after' is missing.*train_loss.*loss_key"):
        run(strategy, OneLoss)
    prac = made(PracFedEBAPlus, loss_key="train_loss", max_failed_rounds=1)
    with pytest.raises(RunError, match=r"num-steps' is missing.*given as local_steps"):
        run(prac, OneLoss)


def test_prac_with_one_loss_warns_once_and_equals_fedeba(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected, _ = run(made(FedEBA, loss_key="train_loss"), OneLoss, 3)
    strategy = made(
        PracFedEBAPlus, loss_key="train_loss", local_steps=4, alpha=0.9, theta=0.0
    )
    with caplog.at_level(logging.WARNING):
        found, _ = run(strategy, OneLoss, 3)
    assert strategy.round_metrics["branch"] == 1.0
    assert_close(found, expected)
    warnings = [r.getMessage() for r in caplog.records if "loss_before_key" in r.message]
    assert len(warnings) == 1
    assert "equals FedEBA" in warnings[0]


class Curved(FedEBAPlusClient):
    """Another training loss: what is reported must be of it too."""

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return 2.0 * super().loss(model, features, labels)


def test_reported_losses_are_of_the_loss_that_is_trained_on() -> None:
    arrays = model_arrays(network())
    config: Any = {"report-gradient": True}
    request = Request(PROBE, 0, {ARRAYS: arrays}, config)
    plain, curved = client_of(FedEBAPlusClient), client_of(Curved)
    assert isinstance(plain, FedEBAPlusClient)
    assert isinstance(curved, Curved)
    one, two = plain.on_probe(request), curved.on_probe(request)
    assert two.metrics["loss-before"] == pytest.approx(
        2 * float(one.metrics["loss-before"])  # type: ignore[arg-type]
    )
    np.testing.assert_allclose(
        two.arrays[GRADIENT]["4.bias"], 2 * one.arrays[GRADIENT]["4.bias"], rtol=1e-5
    )
