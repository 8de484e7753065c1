"""CFD through its real strategy and clients, and the network on its server."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import nn
from torch.nn import functional

from fedsuite.clients.distillation.cfd import CFDClient
from fedsuite.clients.distillation.fedmd import FedMDClient
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.data.public import PublicData
from fedsuite.data.public_batches import public_batch
from fedsuite.messages.records import (
    LOGITS,
    OUTPUTS,
    PROBABILITIES,
    SERVER_OUTPUTS,
    TRANSFER,
)
from fedsuite.models.assignment import Network, Networks
from fedsuite.models.distillation import kl_divergence, probability_divergence
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.strategies.distillation.cfd import CFD, softmax
from fedsuite.strategies.distillation.fedmd import FedMD
from fedsuite.strategies.distillation.server_student import ServerStudent
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import bits
from tests.strategies.distillation.public import (
    CLIENTS,
    FIXTURE,
    MIXED,
    NUMBERED,
    PUBLIC,
    Build,
    Federation,
    Table,
    assert_same_models,
    differ,
    normalised,
    small,
    strategy_of,
    tables,
    tables_strategy,
    wide,
)

SERVER = ((0.5, 0.5, 0), (0, 0, 1), (1, 0, 0.5), (0, 1, 0))
"""Logits of the server's network on the fixture's samples."""

CLIENT_LOSSES = (0.588931, 0.199476, 0.492893)


def networks_of(*builds: Build, sizes: tuple[int, ...] = (1,)) -> ServerNetworks:
    """Return networks of which the last one is nobody's, if there are several."""
    held = tuple(range(max(len(builds) - 1, 1)))
    distinct = tuple(Network("linear") for _ in builds)
    return ServerNetworks(
        Networks(distinct, held), initial=(), num_parameters=sizes, build=built(builds)
    )


def built(builds: tuple[Build, ...]) -> Callable[[int], nn.Module]:
    def build(index: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return builds[index]()

    return build


def cfd(build: Build = wide, num_clients: int = 3, **options: Any) -> Any:
    options = {"networks": networks_of(build), "public": PublicData(PUBLIC)} | options
    return strategy_of(CFD, num_clients, **options)


def golden(logits: Any = (), **options: Any) -> tuple[Any, list[float], float, Federation]:
    """Run one exchange on the fixture; return strategy, losses and federation."""
    federation = tables(CFDClient, logits or FIXTURE.values())
    strategy = tables_strategy(
        CFD,
        networks=networks_of(lambda: Table(SERVER)),
        public=PublicData(NUMBERED),
        **options,
    )
    report = federation.run(strategy, 1).reports[0]
    losses = [row["transfer_loss"] for row in report.train.rows]
    return strategy, losses, report.method_metrics["server_loss"], federation


# The specification's numbers


def test_losses_by_pure_functions() -> None:
    server = torch.tensor(SERVER, dtype=torch.float64, requires_grad=True)
    mean = torch.stack(CLIENTS).mean(dim=0)
    loss = kl_divergence(server, mean)
    assert float(loss.detach()) == pytest.approx(0.097776, abs=1e-6)
    (slope,) = torch.autograd.grad(loss, server)
    np.testing.assert_allclose(slope, SLOPE, atol=1e-6)
    probabilities = functional.softmax(mean, dim=1)
    same = probability_divergence(server, probabilities)
    assert float(same.detach()) == pytest.approx(0.097776, abs=1e-6)
    soft = torch.stack([functional.softmax(f, dim=1) for f in CLIENTS]).mean(dim=0)
    found = probability_divergence(server, soft)
    assert float(found.detach()) == pytest.approx(0.093943, abs=1e-6)
    hard = torch.tensor(
        [(1 / 3, 2 / 3, 0), (1 / 3, 1 / 3, 1 / 3), (2 / 3, 0, 1 / 3), (0, 1 / 3, 2 / 3)],
        dtype=torch.float64,
    )
    found = probability_divergence(server, hard)
    assert float(found.detach()) == pytest.approx(0.308256, abs=1e-6)
    losses = [float(kl_divergence(f, server)) for f in CLIENTS]
    assert losses == pytest.approx(CLIENT_LOSSES, abs=1e-6)


SLOPE = [
    (-0.011999, -0.031570, 0.043570),
    (-0.010342, -0.010342, 0.020684),
    (0.023934, 0.001954, -0.025887),
    (0.012394, 0.064969, -0.077363),
]


def test_no_gradient_flows_into_a_target() -> None:
    target = torch.full((2, 3), 1 / 3, requires_grad=True)
    logits = torch.randn(2, 3, requires_grad=True)
    probability_divergence(logits, target).backward()
    assert target.grad is None and logits.grad is not None
    with pytest.raises(ValueError, match="one shape"):
        probability_divergence(logits, target[:1])


def test_a_round_of_the_specification_s_example() -> None:
    strategy, losses, server_loss, federation = golden(cfd_emit="before")
    assert server_loss == pytest.approx(0.097776, abs=1e-6)
    assert losses == pytest.approx(CLIENT_LOSSES, abs=1e-6)
    # Adam's first moment after its first step is a tenth of the gradient.
    moment = strategy.state()[0]["optimizer/logits/exp_avg"]
    np.testing.assert_allclose(moment, np.array(SLOPE) / 10, atol=2e-7)
    # Plain steps of size 1 by the clients' gradients.
    client = CLIENTS[0].clone().requires_grad_(True)
    emitted = torch.tensor(SERVER, dtype=torch.float64)
    (slope,) = torch.autograd.grad(kl_divergence(client, emitted), client)
    went = np.array(FIXTURE[1]) - federation.models()[0][0]
    np.testing.assert_allclose(went, slope, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cfd_target": "logit-mean"}, 0.097776),
        ({"cfd_target": "prob-mean"}, 0.093943),
        ({"cfd_target": "prob-mean", "cfd_bits": 1}, 0.308256),
        ({"cfd_target": "prob-mean", "cfd_bits": 24}, 0.093943),
    ],
)
def test_what_the_server_learns(options: dict[str, Any], expected: float) -> None:
    _, _, server_loss, _ = golden(**options)
    assert server_loss == pytest.approx(expected, abs=1e-6)


def test_clients_get_what_the_server_says_after_its_step() -> None:
    _, losses, _, federation = golden(cfd_learning_rate=0.1)
    # Adam's first step is its rate against the gradient's sign.
    emitted = torch.tensor(SERVER, dtype=torch.float64) - 0.1 * torch.tensor(SLOPE).sign()
    expected = [float(kl_divergence(f, emitted)) for f in CLIENTS]
    assert losses == pytest.approx(expected, abs=2e-6)
    assert losses != pytest.approx(CLIENT_LOSSES, abs=1e-3)
    order = public_batch(4, 4, 0, 1, 0)
    for message in federation.grid.arrays(TRANSFER, sent=True):
        assert set(message) == {SERVER_OUTPUTS}
        found = message[SERVER_OUTPUTS][LOGITS]
        np.testing.assert_allclose(found, emitted[order], atol=1e-5)


def test_codes_are_what_travels() -> None:
    federation = golden(cfd_target="prob-mean", cfd_bits=1)[-1]
    (first, second, third) = federation.grid.arrays("train.local_phase", sent=False)
    order = public_batch(4, 4, 0, 1, 0).numpy()
    for reply, client_id, labels in (
        (first, 0, (0, 1, 0, 2)),
        (second, 1, (1, 0, 0, 2)),
        (third, 2, (1, 2, 2, 1)),
    ):
        (record,) = reply.values()
        assert set(reply) == {f"client-{client_id}.{OUTPUTS}"}
        assert set(record) == {PROBABILITIES}
        assert record[PROBABILITIES].dtype == np.float32
        np.testing.assert_array_equal(record[PROBABILITIES], np.eye(3)[[*labels]][order])


# What must hold


def test_a_server_that_reaches_its_target_is_fedmd() -> None:
    # A table's rows are free: with enough steps it says what it is told.
    federation = golden(cfd_server_steps=600, cfd_learning_rate=0.05)[-1]
    other = tables(FedMDClient)
    other.run(tables_strategy(FedMD, distillation_target="all"), 1)
    for (one,), (two,) in zip(federation.models(), other.models(), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.parametrize("target", ["logit-mean", "prob-mean"])
def test_where_all_agree_there_is_nothing_to_learn(target: str) -> None:
    _, losses, server_loss, federation = golden(
        [SERVER] * 3, cfd_target=target, cfd_emit="before"
    )
    assert losses == pytest.approx([0] * 3, abs=1e-6)
    assert server_loss == pytest.approx(0, abs=1e-6)
    for (logits,) in federation.models():
        np.testing.assert_allclose(logits, SERVER, atol=1e-6)


def test_order_of_replies_is_of_no_consequence() -> None:
    runs = [
        Federation(CFDClient),
        Federation(CFDClient, order=lambda replies: replies[::-1]),
    ]
    strategies = [cfd() for _ in runs]
    for federation, strategy in zip(runs, strategies, strict=True):
        federation.run(strategy)
    assert_same_models(*runs)
    left, right = (strategy.state()[0] for strategy in strategies)
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_the_server_sees_the_public_batch_of_its_clients() -> None:
    class Noting(CFDClient):
        def public_features(self, request: Any, step: int) -> Any:
            batch = super().public_features(request, step)
            theirs.append((request.server_round, step, batch))
            return batch

    class Watched(ServerStudent):
        def step(self, inputs: Any, target: Any, server_round: int, exchange: int) -> float:
            ours.append((server_round, exchange, inputs))
            return super().step(inputs, target, server_round, exchange)

    theirs: list[Any] = []
    ours: list[Any] = []
    strategy = cfd()
    strategy._student = Watched(wide(), 0.01, 0)
    Federation(Noting).run(strategy, 2)
    assert [(r, e) for r, e, _ in ours] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for server_round, exchange, inputs in ours:
        seen = [b for r, s, b in theirs if (r, s) == (server_round, exchange)]
        assert seen and all(torch.equal(batch, inputs) for batch in seen)


def test_a_server_that_stands_still_and_one_that_says_before() -> None:
    runs = [Federation(CFDClient) for _ in range(4)]
    runs[0].run(cfd(cfd_server_steps=0, cfd_emit="before"))
    runs[1].run(cfd(cfd_server_steps=0))
    runs[2].run(cfd(cfd_emit="before"))
    runs[3].run(cfd())
    assert_same_models(runs[0], runs[1])
    assert differ(runs[1], runs[2])
    assert differ(runs[2], runs[3])


def test_what_is_restored_goes_on_as_if_nothing_had_been() -> None:
    whole = Federation(CFDClient)
    strategy = cfd(normalised)
    whole.run(strategy, 3)
    parted = Federation(CFDClient)
    first, second = cfd(normalised), cfd(normalised)
    assert first.state() == ({}, {})
    parted.run(first, 2)
    second.restore(*first.state())
    second.client_versions = first.client_versions
    exchanges = len(parted.grid.sent)
    second.server_round = 2
    continue_from(second, parted, 3)
    assert len(parted.grid.sent) > exchanges
    assert_same_models(whole, parted)
    left, right = strategy.state()[0], second.state()[0]
    assert set(left) == set(right)
    assert any(name.endswith("running_mean") for name in left)
    assert any(name.endswith("exp_avg_sq") for name in left)
    assert all(np.array_equal(left[name], right[name]) for name in left)
    second.restore({}, {})
    assert second.state() == ({}, {})


def continue_from(strategy: Any, federation: Federation, server_round: int) -> None:
    """Make one more round by hand."""
    with flower_identity():
        messages = strategy.configure_train(
            server_round, ArrayRecord({}), ConfigRecord(), federation.grid
        )
        replies = federation.grid.send_and_receive(messages)
        strategy.aggregate_train(server_round, replies)


# The server's network


def test_asking_the_server_s_network_leaves_no_trace() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        student = ServerStudent(normalised(), 0.01, seed=5)
    before = [t.clone() for t in student.network.state_dict().values()]
    state = torch.get_rng_state()
    first = student.logits(PUBLIC, 1, 0)
    assert torch.equal(torch.get_rng_state(), state)
    for tensor, start in zip(student.network.state_dict().values(), before, strict=True):
        assert torch.equal(tensor, start)
    np.testing.assert_array_equal(student.logits(PUBLIC, 1, 0), first)
    assert not np.array_equal(student.logits(PUBLIC, 1, 1), first)
    assert not np.array_equal(student.logits(PUBLIC, 2, 0), first)
    # Its step sees what it said: the loss against that is 0.
    assert student.step(PUBLIC, softmax(first), 1, 0) == pytest.approx(0, abs=1e-6)
    (moved,) = [b for n, b in student.network.named_buffers() if "batches" in n]
    assert int(moved) == 1
    student.logits(PUBLIC, 1, 0)
    assert int(moved) == 1


def test_a_server_s_network_that_diverges_ends_the_run() -> None:
    student = ServerStudent(small(), 0.01, seed=0)
    with torch.no_grad():
        student.network.weight.fill_(math.inf)  # type: ignore[union-attr, operator]
    with pytest.raises(RunError, match="lower cfd-learning-rate"):
        student.logits(PUBLIC, 4, 0)
    with pytest.raises(RunError, match="round 4"):
        student.step(PUBLIC, np.full((20, 3), 1 / 3), 4, 0)


def test_the_server_has_the_largest_network_of_a_client() -> None:
    # The last one is nobody's.
    networks = networks_of(small, wide, normalised, sizes=(15, 75, 99))
    strategy = cfd(networks=networks)
    found = [tuple(p.shape) for p in strategy.student.network.parameters()]
    assert found == [tuple(p.shape) for p in wide().parameters()]


def test_the_server_s_network_may_be_named() -> None:
    strategy = cfd(cfd_server_model="mlp:hidden-width=5:hidden-layers=1")
    shapes = [tuple(p.shape) for p in strategy.student.network.parameters()]
    assert shapes == [(5, 4), (5,), (3, 5), (3,)]


# What is refused


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cfd_bits": 25}, "cfd_bits = 25"),
        ({"cfd_bits": 1}, "cfd_target"),
        ({"cfd_learning_rate": 0.0}, "cfd_learning_rate"),
        ({"cfd_server_steps": -1}, "cfd_server_steps"),
        ({"public_rows": 3}, "public has 20"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        cfd(**options)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("mpl", "cfd-server-model: entry 'mpl'"), ("mlp, linear", "expected one network")],
)
def test_networks_that_are_none_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        cfd(cfd_server_model=text)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.full((6, 3), np.nan, np.float32), "NaN"),
        (np.zeros((6, 2), np.float32), "shape"),
        (np.zeros((6, 3), np.int64), "dtype"),
    ],
)
@pytest.mark.parametrize("bits", [0, 2])
def test_bad_outputs_are_not_used(value: np.ndarray, reason: str, bits: int) -> None:
    class Lying(CFDClient):
        def outputs_without_trace(self, request: Any, step: int) -> Any:
            found = super().outputs_without_trace(request, step)
            lie = torch.from_numpy(value)
            return dict.fromkeys(found, lie) if self.client_id == 1 else found

    target = "prob-mean" if bits else "logit-mean"
    federation = Federation(Lying)
    trace = federation.run(cfd(cfd_bits=bits, cfd_target=target), 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1
    assert reason in rejection.reason


def test_what_is_no_distribution_does_no_harm() -> None:
    strategy = cfd(lambda: Table(SERVER), cfd_bits=2, cfd_target="prob-mean")
    rows = np.array([(-1, 3, 0), (0, 0, 0), (0.5, 0.5, 1)], np.float32)
    honest = np.array([(0, 1, 0), (0, 0, 1), (1 / 3, 1 / 3, 1 / 3)], np.float32)
    found = strategy._target({0: {PROBABILITIES: rows}, 1: {PROBABILITIES: honest}})
    undone = np.array([(0, 1, 0), (1 / 3, 1 / 3, 1 / 3), (0.25, 0.25, 0.5)])
    np.testing.assert_allclose(found, (undone + honest) / 2, atol=1e-7)


def test_a_round_tells_the_bits_of_an_ideal_coder() -> None:
    """Labels 0102 and 1002 cost 2 + 2 + 2 bits each, 1221 four; in bytes 144 travelled."""
    federation = tables(CFDClient, FIXTURE.values())
    strategy = tables_strategy(
        CFD,
        networks=networks_of(lambda: Table(SERVER)),
        public=PublicData(NUMBERED),
        cfd_target="prob-mean",
        cfd_bits=1,
        cfd_learning_rate=1e-9,
    )
    first, second = federation.run(strategy, 2).reports
    assert first.train.bytes_up == 144
    assert first.method_metrics["coded_bits_up"] == pytest.approx(6 + 6 + 4)
    # Each label tells the next one of its row, whether or not it changed.
    assert 0 <= second.method_metrics["coded_bits_up"] < 8
    other = cfd(lambda: Table(SERVER), cfd_target="prob-mean", cfd_bits=1)
    other.restore(*strategy.state())
    again = other.state()[0]
    assert bits(again) == bits(strategy.state()[0])
    np.testing.assert_array_equal(again["codes/2"].argmax(axis=1), (1, 2, 2, 1))


def test_networks_may_all_differ_and_a_round_has_its_figures() -> None:
    federation = Federation(CFDClient, MIXED)
    trace = federation.run(cfd(), 2)
    assert len(trace.reports[-1].evaluate.rows) == 3
    assert set(trace.reports[-1].method_metrics) == {"server_loss", "output_divergence"}
    assert all(not arrays for arrays in trace.arrays)
    size = 6 * 3 * 4
    assert [r.train.bytes_up for r in trace.reports] == [6 * size] * 2
    assert [r.train.bytes_down for r in trace.reports] == [6 * size] * 2
