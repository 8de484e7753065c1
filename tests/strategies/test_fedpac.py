"""FedPAC: golden statistics, heads and prototypes; identities; hostile uploads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.client_app import Worker, client_app_for, experiment_model, federated_data
from fedsuite.clients.evaluation import evaluate_model
from fedsuite.clients.fedpac import (
    FedPACClient,
    class_means,
    feature_variance,
    scaled_means,
)
from fedsuite.clients.store import MemoryStore
from fedsuite.clients.training import (
    TrainingOptions,
)
from fedsuite.data import Split
from fedsuite.errors import ConfigError
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.groups import ParameterGroups, parameter_groups
from fedsuite.records import (
    ARRAYS,
    METRICS,
    Arrays,
    Request,
    client_record,
    to_arrays,
    to_record,
)
from fedsuite.server_app import build_strategy
from fedsuite.server_parts import ServerParts
from fedsuite.strategies import fedpac
from fedsuite.strategies.fedpac import (
    FedPAC,
    collaboration_matrix,
    head_weights,
    mean_prototypes,
)
from tests.helpers import Trace, bits, digits_experiment, run, run_digits
from tests.strategies.products import GROUPS, Watching

# ---- golden numbers

FEATURES = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
LABELS = np.array([0, 1, 0])
VARIANCES = np.array([0.04, 0.02])
MEANS = np.array([[0.5, 0.0, 0.0, 0.5], [0.3, 0.0, 0.0, 0.6]])


def test_golden_statistics() -> None:
    assert feature_variance(FEATURES, LABELS, 2) == pytest.approx(0.814815, abs=1e-6)
    assert class_means(FEATURES, LABELS, 3).tolist() == [[2, 0], [0, 2], [0, 0]]
    expected = [[4 / 3, 0], [0, 2 / 3], [0, 0]]
    assert scaled_means(FEATURES, LABELS, 3) == pytest.approx(np.array(expected))


@given(st.integers(0, 20), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_variance_is_the_papers_sum(count: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features, labels = rng.normal(2, 1, (count, 3)), rng.integers(0, classes, count)
    total = 0.0
    for label in range(classes):
        held = features[labels == label]
        if len(held):
            share = len(held) / count
            square = np.square(held).sum(axis=1).mean()
            total += share * square - share**2 * np.square(held.mean(axis=0)).sum()
    expected = total / max(count, 1)
    assert feature_variance(features, labels, classes) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("client", "diagonal", "weights"),
    [(0, [0.04, 0.07], [0.636364, 0.363636]), (1, [0.09, 0.02], [0.181818, 0.818182])],
)
def test_golden_weights(client: int, diagonal: list[float], weights: list[float]) -> None:
    matrix = collaboration_matrix(MEANS, VARIANCES, client)
    assert matrix == pytest.approx(np.diag(diagonal), abs=1e-12)
    assert head_weights(matrix, client) == pytest.approx(np.array(weights), abs=1e-6)


def test_matrix_off_the_diagonal() -> None:
    """<H_0 - H_1, H_0 - H_2> for the first of three."""
    means = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    matrix = collaboration_matrix(means, np.array([5.0, 7.0, 11.0]), 0)
    assert matrix.tolist() == [[5, 0, 0], [0, 9, -2], [0, -2, 15]]


def test_equal_clients_count_by_variance() -> None:
    means, variances = np.ones((3, 4)), np.array([1.0, 2.0, 4.0])
    for client in range(3):
        weights = head_weights(collaboration_matrix(means, variances, client), client)
        assert weights == pytest.approx(np.array([4, 2, 1]) / 7)


def test_small_weights_are_none() -> None:
    weights = head_weights(np.diag([1.0, 1500.0, 500.0]), 0)
    assert weights[1] == 0
    assert weights == pytest.approx(np.array([500 / 501, 0, 1 / 501]), rel=1e-6)
    many = head_weights(np.eye(2000), 0)
    assert many == pytest.approx(np.full(2000, 1 / 2000))


def test_a_solver_that_fails_leaves_the_own_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(matrix: Any) -> Any:
        raise RuntimeError("no end")

    monkeypatch.setattr(fedpac, "least_form_on_simplex", fail)
    assert head_weights(np.eye(3), 1).tolist() == [0, 1, 0]


def test_golden_prototypes() -> None:
    means = [np.array([[1.0, 0.0], [9.0, 9.0]]), np.array([[0.0, 1.0], [9.0, 9.0]])]
    counts = [np.array([2.0, 0.0]), np.array([3.0, 0.0])]
    prototypes, present = mean_prototypes(means, counts)
    assert prototypes == pytest.approx(np.array([[0.4, 0.6], [0.0, 0.0]]))
    assert present.tolist() == [1, 0]


# ---- the client


def small_client(**training: Any) -> tuple[FedPACClient, nn.Sequential, Split]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    features = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    data = Split(features, torch.tensor([0, 1, 0, 1, 1, 0]))
    options = TrainingOptions(
        **{"batch_size": 0, "local_steps": 1, "learning_rate": 0.5, **training}
    )
    return FedPACClient(model, data, data, training=options), model, data


PROTOTYPES: Arrays = {
    "means": np.array([[1.0, 2.0, 3.0], [50.0, 50.0, 50.0]], np.float32),
    "present": np.array([1, 0], np.uint8),
}


def asked(model: nn.Module, alignment: float = 2.0, **records: Arrays) -> Request:
    body = {n: a for n, a in model_arrays(model).items() if n.startswith("0.")}
    config = {"alignment": alignment, "head-epochs": 1, "head-learning-rate": 0.25}
    return Request("train", 0, {ARRAYS: body, **records}, config)


@pytest.mark.parametrize("prototypes", [None, PROTOTYPES])
def test_client_steps_are_the_papers(prototypes: Arrays | None) -> None:
    """Head by cross-entropy at its own rate; then the body, drawn to c_y of class 0."""
    client, model, data = small_client()
    _, twin, _ = small_client()
    before = twin[1](twin[0](data.features)).detach()
    records = {} if prototypes is None else {"prototypes": prototypes}
    reply = client.answer(asked(model, **records))

    loss = functional.cross_entropy(twin(data.features), data.labels)
    head = list(twin[2].parameters())
    for parameter, gradient in zip(head, torch.autograd.grad(loss, head), strict=True):
        parameter.data -= 0.25 * gradient
    z = twin[1](twin[0](data.features))
    loss = functional.cross_entropy(twin[2](z), data.labels)
    if prototypes is not None:
        gaps = (z - torch.tensor([1.0, 2.0, 3.0]))[data.labels == 0]
        loss = loss + 2.0 * gaps.square().sum() / (6 * 3)
    body = list(twin[0].parameters())
    for parameter, gradient in zip(body, torch.autograd.grad(loss, body), strict=True):
        parameter.data -= 0.5 * gradient

    expected = model_arrays(twin)
    found = {**reply.arrays[ARRAYS], **reply.arrays["head"]}
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)

    after = twin[1](twin[0](data.features)).detach().numpy()
    labels = data.labels.numpy()
    statistics = reply.arrays["statistics"]
    old = before.numpy().astype(np.float64)
    assert statistics["scaled-means"] == pytest.approx(
        scaled_means(old, labels, 2), abs=1e-5
    )
    assert statistics["prototypes"] == pytest.approx(
        class_means(after, labels, 2), abs=1e-5
    )
    assert statistics["counts"].tolist() == [3, 3]
    variance = feature_variance(old, labels, 2)
    assert reply.metrics["feature-variance"] == pytest.approx(variance, rel=1e-5)


def test_head_comes_with_the_message_else_it_is_the_initial_one() -> None:
    client, model, data = small_client()
    initial = model_arrays(model)
    head = {"2.weight": np.ones((2, 3), np.float32), "2.bias": np.ones(2, np.float32)}
    scores = []
    for records in ({"head": head}, {}):
        request = asked(model, **records)
        found = client.on_evaluate(Request("evaluate", 0, request.arrays))
        load_arrays(model, {**initial, **records.get("head", {})})
        assert found.metrics["loss"] == evaluate_model(model, data)[0]
        scores.append(found.metrics["loss"])
    assert scores[0] != scores[1]


def test_features_are_those_of_evaluation_and_move_no_statistic() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    _, _, data = small_client()
    client = FedPACClient(model, data, data)
    model.train()
    before = model_arrays(model)
    found = client.features()
    assert bits(model_arrays(model)) == bits(before)
    assert model.training
    model.eval()
    with torch.no_grad():
        expected = model[1](model[0](data.features)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class TwoPasses:
    """Stands in for LSR: looks at another view of the batch after the batch itself."""

    def loss(
        self, model: nn.Module, features: Tensor, labels: Tensor, *rest: Any
    ) -> Tensor:
        mean = functional.cross_entropy(model(features), labels)
        model(-features)
        return mean


def test_alignment_is_that_of_the_batch_whatever_else_a_loss_looks_at() -> None:
    replies = []
    for views in (None, TwoPasses()):
        client, model, _ = small_client()
        client.self_regularisation = views  # type: ignore[assignment]
        replies.append(client.answer(asked(model, prototypes=PROTOTYPES)))
    assert bits(replies[0].arrays[ARRAYS]) == bits(replies[1].arrays[ARRAYS])


def test_watching_features_leaves_no_trace() -> None:
    client, model, _ = small_client()
    client.answer(asked(model, prototypes=PROTOTYPES))
    assert not model[2]._forward_pre_hooks
    assert client._targets is None
    assert client._features is None


def test_client_without_examples() -> None:
    _, model, data = small_client()
    none = Split(data.features[:0], data.labels[:0])
    reply = FedPACClient(model, none, none).answer(asked(model))
    assert reply.metrics["feature-variance"] == 0
    assert not any(array.any() for array in reply.arrays["statistics"].values())


# ---- rounds


def started(**changes: Any) -> tuple[Watching, FedPAC, Trace]:
    experiment = digits_experiment(method="fedpac", **{**KEYS, **changes})
    model = experiment_model(experiment, federated_data(experiment))
    grid = Watching(client_app_for(Worker(experiment, MemoryStore())), 4)
    strategy = build_strategy(experiment, ServerParts(parameter_groups(model)))
    assert isinstance(strategy, FedPAC)
    trace = run(strategy, grid, experiment["num-rounds"], to_record(model_arrays(model)))
    return grid, strategy, trace


KEYS: dict[str, Any] = {
    "model": "mlp",
    "hidden_width": 16,
    "partitioner": "shards",
    "num_rounds": 3,
}


def same_as_fedrep(trace: Trace, **changes: Any) -> bool:
    keys = {**KEYS, **changes, "head_epochs": 1}
    expected = run_digits(digits_experiment(method="fedrep", **keys))
    same = [bits(a) for a in trace.arrays] == [bits(a) for a in expected.arrays]
    losses = [
        [row["loss"] for row in report.evaluate.rows]
        for report in (*trace.reports, *expected.reports)
    ]
    count = len(trace.reports)
    return same and losses[:count] == losses[count:]


def test_alone_in_a_round_and_unaligned_is_fedrep() -> None:
    keys = {"clients_per_round": 1, "num_rounds": 6}
    assert same_as_fedrep(started(alignment=0.0, **keys)[2], **keys)
    assert not same_as_fedrep(started(alignment=1.0, **keys)[2], **keys)


def test_own_heads_and_unaligned_is_fedrep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not same_as_fedrep(started(alignment=0.0)[2])
    monkeypatch.setattr(fedpac, "head_weights", lambda matrix, k: np.eye(len(matrix))[k])
    assert same_as_fedrep(started(alignment=0.0)[2])
    assert not same_as_fedrep(started(alignment=0.0, head_learning_rate=0.2)[2])
    assert not same_as_fedrep(started(alignment=0.0, head_epochs=2)[2])


def records_of(messages: list[Message], name: str) -> list[Arrays]:
    return [
        to_arrays(record)
        for message in messages
        for key, record in message.content.array_records.items()
        if key == name
    ]


def test_round_on_the_server_is_the_papers() -> None:
    """From the replies themselves: heads, prototypes, and what goes out next."""
    grid, strategy, trace = started(num_rounds=2)
    train = [m for m in grid.replies if m.metadata.message_type == "train"][:4]
    heads = [records_of(train, client_record(k, "head"))[0] for k in range(4)]
    stats = [records_of(train, client_record(k, "statistics"))[0] for k in range(4)]
    variances = np.array(
        [
            m.content.metric_records[client_record(k, METRICS)]["feature-variance"]
            for k, m in enumerate(train)
        ]
    )
    scaled = np.array([s["scaled-means"].reshape(-1) for s in stats], dtype=np.float64)
    sent = [m for m in grid.sent if m.metadata.message_type == "train"]
    first, second = sent[:4], sent[4:]
    assert not records_of(first, "prototypes")
    assert not any(records_of(first, client_record(k, "head")) for k in range(4))
    own_weights = []
    for client in range(4):
        weights = head_weights(collaboration_matrix(scaled, variances, client), client)
        own_weights.append(weights[client])
        [got] = records_of(second, client_record(client, "head"))
        for name, array in got.items():
            expected = sum(w * h[name] for w, h in zip(weights, heads, strict=True))
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)
        evaluated = [m for m in grid.sent if m.metadata.message_type == "evaluate"][:4]
        [scored] = records_of(evaluated, client_record(client, "head"))
        assert bits(scored) == bits(got)
    assert 0 < min(own_weights) < 1
    rows = trace.reports[0].train.rows
    assert [row["own_head_weight"] for row in rows] == pytest.approx(own_weights)
    counts = np.array([s["counts"] for s in stats], dtype=np.float64)
    prototypes = records_of(second, "prototypes")
    assert len(prototypes) == 4
    for label in range(10):
        held = counts[:, label].sum()
        assert prototypes[0]["present"][label] == (held > 0)
        if held:
            mean = sum(
                c[label] * s["prototypes"][label]
                for c, s in zip(counts, stats, strict=True)
            )
            np.testing.assert_allclose(
                prototypes[0]["means"][label], mean / held, rtol=1e-5
            )
    assert set(strategy.heads) == set(range(4))


def test_heads_of_absent_clients_stay() -> None:
    _, strategy, trace = started(clients_per_round=2, num_rounds=4, seed=1)
    asked_last = {row["client"] for row in trace.reports[-1].train.rows}
    earlier = {row["client"] for r in trace.reports for row in r.train.rows}
    assert set(strategy.heads) == earlier
    assert earlier - asked_last
    _, shorter, _ = started(clients_per_round=2, num_rounds=3, seed=1)
    for client in earlier - asked_last:
        assert bits(strategy.heads[client]) == bits(shorter.heads[client])


def test_state_goes_round() -> None:
    _, strategy, _ = started(num_rounds=1)
    other = FedPAC(groups=strategy.groups)
    other.heads = {77: {"x": np.zeros(1)}}
    other.restore(*strategy.state())
    assert {k: bits(h) for k, h in other.heads.items()} == {
        k: bits(h) for k, h in strategy.heads.items()
    }
    assert bits(other.prototypes) == bits(strategy.prototypes)


def test_a_round_below_the_quorum_changes_nothing() -> None:
    experiment = digits_experiment(method="fedpac", quorum=3, **{**KEYS, "num_rounds": 2})

    def lose(replies: list[Message]) -> list[Message]:
        return replies[:2]

    model = experiment_model(experiment, federated_data(experiment))
    strategy = build_strategy(experiment, ServerParts(parameter_groups(model)))
    app = client_app_for(Worker(experiment, MemoryStore()))
    grid = Watching(app, 4, lose, rounds=(2,))
    initial = to_record(model_arrays(model))
    run(strategy, grid, 2, initial)
    _, once, _ = started(num_rounds=1)
    assert isinstance(strategy, FedPAC)
    assert bits(strategy.prototypes) == bits(once.prototypes)
    assert {k: bits(h) for k, h in strategy.heads.items()} == {
        k: bits(h) for k, h in once.heads.items()
    }


# ---- hostile uploads

Change = Callable[[Any, Callable[[str], str]], None]


def tampered(change: Change) -> tuple[Trace, FedPAC]:
    """Run two rounds in which client 1's reply is changed."""

    def tamper(replies: list[Message]) -> list[Message]:
        change(replies[1].content, lambda name: client_record(1, name))
        return replies

    experiment = digits_experiment(method="fedpac", **{**KEYS, "num_rounds": 2})
    model = experiment_model(experiment, federated_data(experiment))
    strategy = build_strategy(experiment, ServerParts(parameter_groups(model)))
    assert isinstance(strategy, FedPAC)
    app = client_app_for(Worker(experiment, MemoryStore()))
    grid = Watching(app, 4, tamper, rounds=(1, 2))
    trace = run(strategy, grid, 2, to_record(model_arrays(model)))
    return trace, strategy


def statistics(**arrays: Any) -> Change:
    """Return a change of the statistics; a function gets the array that was there."""

    def change(content: Any, record: Callable[[str], str]) -> None:
        key = record("statistics")
        found = to_arrays(content.array_records[key])
        for name, make in arrays.items():
            found[name.replace("_", "-")] = make(found[name.replace("_", "-")])
        content[key] = to_record(found)

    return change


def variance(value: float) -> Change:
    def change(content: Any, record: Callable[[str], str]) -> None:
        content.metric_records[record(METRICS)]["feature-variance"] = value

    return change


def no_head(content: Any, record: Callable[[str], str]) -> None:
    del content[record("head")]


REFUSED: dict[str, tuple[Change, str]] = {
    "negative-counts": (
        statistics(counts=lambda a: -a.astype(np.int64)),
        "array counts: dtype int64, expected uint32",
    ),
    "other-classes": (statistics(counts=lambda a: a[:3]), "array counts: shape (3,)"),
    "nan": (statistics(prototypes=lambda a: a * np.nan), "array prototypes"),
    "infinite": (
        statistics(scaled_means=lambda a: np.full_like(a, np.inf)),
        "array scaled-means: holds NaN or infinity",
    ),
    "negative-variance": (variance(-1e-9), "feature-variance is -1e-09: expected 0"),
    "huge-variance": (variance(1e91), "feature-variance is 1e+91: expected 0"),
    "no-head": (no_head, "array record 'head' is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_uploads_are_dropped(name: str) -> None:
    change, reason = REFUSED[name]
    trace, strategy = tampered(change)
    assert [r.client_id for report in trace.reports for r in report.train.rejections] == [
        1,
        1,
    ]
    assert reason in trace.reports[0].train.rejections[0].reason
    assert set(strategy.heads) == {0, 2, 3}


LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    "change",
    [
        statistics(scaled_means=lambda a: np.full_like(a, LARGEST)),
        statistics(scaled_means=np.zeros_like),
        variance(0.0),
        variance(1e90),
    ],
    ids=["largest-means", "no-means", "no-variance", "largest-variance"],
)
def test_hostile_statistics_cannot_stop_the_round(change: Change) -> None:
    trace, strategy = tampered(change)
    assert not [r for report in trace.reports for r in report.train.rejections]
    for head in strategy.heads.values():
        assert all(np.isfinite(array).all() for array in head.values())


def test_a_stranger_gets_no_weight_and_takes_none_from_others() -> None:
    """A client as far away as float32 allows, in a direction of its own."""
    far, _ = tampered(statistics(scaled_means=lambda a: np.full_like(a, LARGEST)))
    assert far.reports[0].train.rows[1]["own_head_weight"] == 1.0
    expected = head_weights(collaboration_matrix(MEANS, VARIANCES, 0), 0)
    means = np.vstack([MEANS, [0.0, float(LARGEST), 0.0, 0.0]])
    matrix = collaboration_matrix(means, np.append(VARIANCES, 0.0), 0)
    assert head_weights(matrix, 0) == pytest.approx([*expected, 0.0], abs=1e-9)


def test_claimed_counts_weigh_no_more_than_the_examples() -> None:
    claimed = tampered(statistics(counts=lambda a: a * 1000))[1].prototypes
    honest = tampered(statistics())[1].prototypes
    assert claimed["present"].tolist() == honest["present"].tolist()
    np.testing.assert_allclose(claimed["means"], honest["means"], rtol=1e-4, atol=1e-6)


def test_clients_that_claim_no_examples_lend_no_head() -> None:
    _, strategy = tampered(statistics(counts=np.zeros_like))
    assert set(strategy.heads) == {0, 2, 3}


# ---- refusals


@pytest.mark.parametrize(
    "bad",
    [
        {"alignment": -0.1},
        {"alignment": float("nan")},
        {"head_epochs": -1},
        {"head_learning_rate": 0.0},
        {"head_learning_rate": float("inf")},
    ],
)
def test_bad_options(bad: dict[str, Any]) -> None:
    [name] = bad
    with pytest.raises(ValueError, match=f"{name} = "):
        FedPAC(groups=GROUPS, **bad)


def test_a_head_without_a_matrix_is_refused() -> None:
    strategy = FedPAC(groups=ParameterGroups(head=("bias",), other=("body",)))
    with pytest.raises(ConfigError, match="needs a linear layer"):
        strategy.train_exchange({"bias": np.zeros(2), "body": np.zeros(2)}, [0])


def test_noise_on_uploads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dp-noise-multiplier = 0\.1: method fedpac"):
        digits_experiment(method="fedpac", dp_noise_multiplier=0.1)
