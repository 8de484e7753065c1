"""FedAL, FedMD-LF and FedMD through their real strategies and clients."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from torch.nn import functional

from fedsuite.clients.fedal import FedALClient
from fedsuite.clients.fedmd import FedMDClient
from fedsuite.clients.store import MemoryStore
from fedsuite.clients.training import TrainingOptions
from fedsuite.public_batches import public_batch
from fedsuite.records import (
    ADVERSARIAL_GRADIENT,
    LOCAL_PHASE,
    LOGITS,
    MEAN_OUTPUTS,
    TRANSFER,
    Request,
    client_record,
    records_of,
)
from fedsuite.strategies.fedal import FedAL, parse_widths
from fedsuite.strategies.fedmd import FedMD, FedMDLF
from fedsuite.strategies.public_exchange import mean_outputs, output_divergence
from tests.strategies.public import (
    ADAM,
    FIXTURE,
    MIXED,
    NO_TRAINING,
    PUBLIC,
    Federation,
    Fixed,
    assert_same_models,
    differ,
    equal,
    normalised,
    rows,
    small,
    strategy_of,
    tables,
    tables_strategy,
    wide,
)

F1, F2 = (2.0, 0.0, -2.0), (0.0, 1.0, 0.0)
DISTILLED = (0.654872, -0.458806, -0.196065)
ADVERSARIAL = ((0.130471, -0.109501, -0.020970), (-0.086346, 0.081980, 0.004367))
TOTAL = ((0.785343, -0.568308, -0.217035), (-0.741218, 0.540786, 0.200432))


class GoldenFedAL(FedAL):
    """With the linear discriminator of the specification's example, which stays."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            discriminator_widths="", discriminator_learning_rate=0.0, **options
        )

    def begin_transfer(self) -> None:
        super().begin_transfer()
        layer = self.discriminator.network[0]
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]]))
            layer.bias.copy_(torch.tensor([0.1, -0.1]))


def golden(kind: type[FedMD], client: type[FedMDClient], **options: Any) -> Federation:
    """Run one round of one exchange with the example's two clients, by plain steps."""
    builds = [lambda: Fixed(*F1), lambda: Fixed(*F2)]
    federation = Federation(client, builds, training=NO_TRAINING)
    options = {"transfer_steps": 1} | options
    federation.run(strategy_of(kind, 2, **options), 1)
    return federation


def moved(federation: Federation) -> np.ndarray:
    """Return how far the logits of both clients went."""
    after = np.stack([model[0] for model in federation.models()])
    return np.array([F1, F2]) - after


def test_the_worked_example_through_strategy_and_clients() -> None:
    federation = golden(GoldenFedAL, FedALClient)
    np.testing.assert_allclose(moved(federation), TOTAL, atol=2e-6)
    (mean, other) = federation.grid.arrays(TRANSFER, sent=True)
    for client_id, message in enumerate((mean, other)):
        found = message[MEAN_OUTPUTS][LOGITS]
        np.testing.assert_allclose(found, np.tile([1, 0.5, -1], (6, 1)), atol=1e-7)
        name = client_record(client_id, ADVERSARIAL_GRADIENT)
        np.testing.assert_allclose(
            message[name][LOGITS], np.tile(ADVERSARIAL[client_id], (6, 1)), atol=1e-6
        )


def test_the_worked_example_without_a_discriminator() -> None:
    away = moved(golden(FedMD, FedMDClient))
    np.testing.assert_allclose(away, [DISTILLED, [-x for x in DISTILLED]], atol=2e-6)


@pytest.mark.parametrize(
    ("options", "losses"),
    [
        ({}, (1.167604, 0.993077)),
        ({"distillation_target": "all"}, (0.265677, 0.318785)),
    ],
)
def test_the_worked_example_s_losses(
    options: dict[str, Any], losses: tuple[float, float]
) -> None:
    federation = Federation(
        FedMDClient, [lambda: Fixed(*F1), lambda: Fixed(*F2)], training=NO_TRAINING
    )
    trace = federation.run(strategy_of(FedMD, 2, transfer_steps=1, **options), 1)
    rows_of = trace.reports[0].train.rows
    assert [row["transfer_loss"] for row in rows_of] == pytest.approx(losses, abs=1e-6)


def matched(kind: str, target: str) -> tuple[list[float], np.ndarray]:
    """Return losses of one exchange on the fixture, and the first client's gradient."""
    federation = tables(FedMDClient)
    strategy = tables_strategy(FedMD, distillation_loss=kind, distillation_target=target)
    trace = federation.run(strategy, 1)
    losses = [row["transfer_loss"] for row in trace.reports[0].train.rows]
    return losses, np.array(FIXTURE[1]) - federation.models()[0][0]


def test_matches_of_logits_on_the_fixture() -> None:
    losses, slope = matched("kl", "others")
    assert losses == pytest.approx((0.855172, 0.324344, 0.974310), abs=1e-6)
    np.testing.assert_allclose(
        slope,
        [
            (0.165244, -0.150282, -0.014962),
            (-0.004821, 0.108968, -0.104148),
            (0.082342, 0.064544, -0.146886),
            (-0.053066, -0.076258, 0.129325),
        ],
        atol=2e-6,
    )
    losses, _ = matched("kl", "all")
    assert losses == pytest.approx((0.374046, 0.167925, 0.426531), abs=1e-6)
    losses, slope = matched("l1", "all")
    assert losses == pytest.approx((0.791667, 0.513889, 0.750000), abs=1e-6)
    signs = [(1, -1, -1), (0, 1, -1), (0, 1, -1), (-1, -1, 1)]
    np.testing.assert_allclose(slope, np.array(signs) / 12, atol=2e-6)
    losses, _ = matched("mse", "all")
    assert losses == pytest.approx((0.905093, 0.460648, 0.939815), abs=1e-6)


@pytest.mark.parametrize("build", [small, wide])
def test_the_chain_rule_through_the_wire_is_that_of_one_graph(build: Any) -> None:
    # A single client: nobody to imitate, and no less-forgetting at the first exchange.
    federation = Federation(FedALClient, [build], training=NO_TRAINING)
    strategy = strategy_of(FedAL, 1, transfer_steps=1, discriminator_learning_rate=0.0)
    # Between two labels there is something to tell apart.
    strategy.restore({}, {"labels": [0, 1]})
    client = federation._client(None, 0)
    before = [p.detach().clone() for p in client.model.parameters()]
    batch = PUBLIC[public_batch(len(PUBLIC), 6, 0, 1, 0)]
    federation.run(strategy, 1)
    for parameter, start in zip(client.model.parameters(), before, strict=True):
        after = parameter.detach().clone()
        with torch.no_grad():
            parameter.copy_(start)
        start.copy_(after)
    client.model.zero_grad()
    p = functional.softmax(client.model(batch) / 2.0, dim=1)
    found = strategy.discriminator.network(p)
    (-functional.cross_entropy(found, torch.zeros(6, dtype=torch.int64))).backward()
    for parameter, after in zip(client.model.parameters(), before, strict=True):
        assert parameter.grad is not None and parameter.grad.abs().max() > 0
        torch.testing.assert_close(
            parameter.detach() - after, parameter.grad, rtol=1e-4, atol=1e-7
        )


KINDS = {
    "fedmd": (FedMD, FedMDClient),
    "fedmd-lf": (FedMDLF, FedMDClient),
    "fedal": (FedAL, FedALClient),
}


@pytest.mark.parametrize("name", KINDS)
def test_nothing_but_logits_travels(name: str) -> None:
    kind, client = KINDS[name]
    federation = Federation(client)
    trace = federation.run(strategy_of(kind, transfer_steps=3), 2)
    grid = federation.grid
    up, down = 0, 0
    for message in (*grid.sent, *grid.replies):
        for record, held in records_of(message.content, ArrayRecord).items():
            arrays = {n: a.shape for n, a in held.items()}
            assert arrays == {LOGITS: (6, 3)}, (record, arrays)
            is_reply = message in grid.replies
            up, down = up + is_reply, down + (not is_reply)
    # In each of 2 rounds 3 exchanges with 3 clients.
    assert up == 18
    assert {name: len(found) for name, found in (("down", range(down)),)} == {
        "down": 36 if name == "fedal" else 18
    }
    size = 6 * 3 * 4
    per_client = 2 if name == "fedal" else 1
    assert [r.train.bytes_up for r in trace.reports] == [9 * size] * 2
    assert [r.train.bytes_down for r in trace.reports] == [9 * size * per_client] * 2
    assert all(not arrays for arrays in trace.arrays)


def test_no_number_of_a_model_leaves_a_client() -> None:
    federation = Federation(FedALClient)
    federation.run(strategy_of(FedAL), 2)
    held = {
        float(x) for m in federation.models() for a in m if a.size for x in a.flat if x % 1
    }
    for message in (*federation.grid.sent, *federation.grid.replies):
        for record in records_of(message.content, ArrayRecord).values():
            for array in record.values():
                assert not held & {float(x) for x in array.numpy().flat}


def test_one_step_of_fedmd_lf_is_fedmd() -> None:
    one_step = TrainingOptions(
        local_steps=1, batch_size=8, learning_rate=0.01, optimizer="adam"
    )
    runs = [Federation(FedMDClient, training=one_step) for _ in range(2)]
    for federation, kind in zip(runs, (FedMD, FedMDLF), strict=True):
        federation.run(strategy_of(kind, transfer_steps=1), 3)
    assert_same_models(*runs)


@pytest.mark.parametrize("phase", ["local", "transfer"])
def test_each_less_forgetting_term_counts_from_the_second_step(phase: str) -> None:
    runs = [Federation(FedMDClient) for _ in range(2)]
    runs[0].run(strategy_of(FedMD), 2)
    runs[1].run(strategy_of(FedMD, less_forgetting=phase), 2)
    assert differ(*runs)
    steps = {"local": {"transfer_steps": 2}, "transfer": {"transfer_steps": 1}}[phase]
    training = TrainingOptions(
        local_steps=1 if phase == "local" else 2,
        batch_size=8,
        learning_rate=0.01,
        optimizer="adam",
    )
    runs = [Federation(FedMDClient, training=training) for _ in range(2)]
    runs[0].run(strategy_of(FedMD, **steps), 2)
    runs[1].run(strategy_of(FedMD, less_forgetting=phase, **steps), 2)
    assert_same_models(*runs)


def test_less_forgetting_may_wait_for_a_round() -> None:
    runs = [Federation(FedMDClient) for _ in range(3)]
    runs[0].run(strategy_of(FedMDLF, less_forgetting_from=3), 2)
    runs[1].run(strategy_of(FedMD), 2)
    runs[2].run(strategy_of(FedMDLF), 2)
    assert_same_models(runs[0], runs[1])
    assert differ(runs[0], runs[2])


def test_without_its_discriminator_fedal_is_fedmd_lf() -> None:
    runs = [Federation(FedALClient), Federation(FedMDClient)]
    runs[0].run(strategy_of(FedAL, adversarial=False))
    runs[1].run(strategy_of(FedMDLF))
    assert_same_models(*runs)


def test_without_both_it_is_fedmd() -> None:
    runs = [Federation(FedALClient), Federation(FedMDClient)]
    runs[0].run(strategy_of(FedAL, adversarial=False, less_forgetting="none"))
    runs[1].run(strategy_of(FedMD))
    assert_same_models(*runs)


class Speechless(FedAL):
    """With a discriminator whose last layer is 0 and stays so."""

    def begin_transfer(self) -> None:
        super().begin_transfer()
        with torch.no_grad():
            for parameter in self.discriminator.network[-1].parameters():
                parameter.zero_()


def test_a_discriminator_without_an_opinion_changes_nothing() -> None:
    runs = [Federation(FedALClient), Federation(FedMDClient), Federation(FedALClient)]
    runs[0].run(strategy_of(Speechless, discriminator_learning_rate=0.0))
    runs[1].run(strategy_of(FedMDLF))
    runs[2].run(strategy_of(FedAL))
    assert_same_models(runs[0], runs[1])
    assert differ(runs[1], runs[2])


class Watched(FedAL):
    """Notes the discriminator at each answer, and what it was asked about."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[Any, Any, Any]] = []
        self.local_ends: list[Any] = []

    def begin_transfer(self) -> None:
        super().begin_transfer()
        self.local_ends.append(self.discriminator.state())

    def feedback(self, outputs: Any, step: int) -> Any:
        before = self.discriminator.state()
        answer = super().feedback(outputs, step)
        self.seen.append((before, self.discriminator.state(), (outputs, answer)))
        return answer


def test_order_inside_an_exchange() -> None:
    federation = Federation(FedALClient)
    strategy = strategy_of(Watched, transfer_steps=3)
    federation.run(strategy, 2)
    assert len(strategy.seen) == 6
    for (_, after, _), (before, _, _) in zip(
        strategy.seen, strategy.seen[1:], strict=False
    ):
        assert equal(before, after)
    assert equal(strategy.local_ends[1], strategy.seen[2][1])
    for before, after, (outputs, answer) in strategy.seen:
        steps = {float(after[n]) for n in after if n.endswith("/step")}
        earlier = {float(before[n]) for n in before if n.endswith("/step")}
        assert steps == {max(earlier, default=0.0) + 1}
        logits = np.stack([held[LOGITS] for held in outputs.values()])
        strategy.discriminator.restore(after)
        fresh = strategy.discriminator.gradient(logits, list(outputs))
        sent = [answer.own[k][ADVERSARIAL_GRADIENT][LOGITS] for k in outputs]
        np.testing.assert_array_equal(np.stack(sent), fresh)


def test_one_client_step_an_exchange() -> None:
    store = MemoryStore()
    federation = Federation(FedALClient, store=store)
    strategy = strategy_of(FedAL, transfer_steps=3)
    federation.run(strategy, 2)
    for client_id, version in strategy.client_versions.items():
        state = store.load(client_id, version)
        taken = {float(a) for name, a in state.items() if name.endswith("/step")}
        # Per round two on own data and three on public data, of one optimiser.
        assert taken == {10.0}


def test_an_optimiser_may_be_made_anew_in_each_round() -> None:
    store = MemoryStore()
    federation = Federation(FedALClient, store=store)
    strategy = strategy_of(FedAL, transfer_steps=3, reset_optimizer=True)
    federation.run(strategy, 2)
    state = store.load(0, strategy.client_versions[0])
    assert {float(a) for n, a in state.items() if n.endswith("/step")} == {5.0}


def test_outputs_are_computed_again_to_the_same_bits() -> None:
    class Noting(FedALClient):
        def transfer_terms(self, request: Any, step: int, logits: Any) -> Any:
            again.append((request.client_id, step, logits.detach().numpy().copy()))
            return super().transfer_terms(request, step, logits)

    again: list[tuple[int, int, np.ndarray]] = []
    federation = Federation(Noting)
    federation.run(strategy_of(FedAL, transfer_steps=2), 1)
    sent = {}
    for message in federation.grid.replies:
        step = 0 if message.metadata.message_type == LOCAL_PHASE else 1
        for name, record in records_of(message.content, ArrayRecord).items():
            client_id = int(name.split(".")[0].removeprefix("client-"))
            sent[client_id, step] = record[LOGITS].numpy()
    assert len(again) == len(sent) == 6
    for client_id, step, logits in again:
        np.testing.assert_array_equal(logits, sent[client_id, step])


def test_telling_outputs_leaves_no_trace() -> None:
    federation = Federation(FedALClient, [normalised])
    client = federation._client(None, 0)
    config = {"public-batch-size": 6, "public-seed": 0, "server-round": 1}
    before = [t.clone() for t in client.model.state_dict().values()]
    state = torch.get_rng_state()
    client.outputs_without_trace(Request(TRANSFER, 0, config=config), 0)
    assert torch.equal(torch.get_rng_state(), state)
    for tensor, start in zip(client.model.state_dict().values(), before, strict=True):
        assert torch.equal(tensor, start)


def test_running_statistics_move_once_an_exchange() -> None:
    federation = Federation(FedALClient, [normalised, normalised])
    federation.run(strategy_of(FedAL, 2, transfer_steps=3), 2)
    (counter,) = [
        b for n, b in federation.clients[0].model.named_buffers() if "batches" in n
    ]
    assert int(counter) == 2 * (2 + 3)


def test_references_are_of_the_start_of_their_phase() -> None:
    class Noting(FedMDClient):
        def before_local_phase(self, request: Any) -> None:
            super().before_local_phase(request)
            starts.append([t.clone() for t in self.model.state_dict().values()])
            references.append(self._reference)

        def after_local_phase(self, request: Any) -> None:
            kept = references[-1]
            for parameter, start in zip(
                kept.parameters(), self._starting_parameters(starts[-1]), strict=True
            ):
                assert torch.equal(parameter, start)
            super().after_local_phase(request)
            ends.append([t.clone() for t in self.model.state_dict().values()])
            wanted = [self.outputs_without_trace(request, step)[LOGITS] for step in (1, 2)]
            for step, logits in enumerate(wanted, start=1):
                np.testing.assert_array_equal(self._kept(step), logits)

        def _starting_parameters(self, state: Any) -> Any:
            names = [n for n, _ in self.model.named_parameters()]
            return [
                t for n, t in zip(self.model.state_dict(), state, strict=True) if n in names
            ]

    starts: list[Any] = []
    ends: list[Any] = []
    references: list[Any] = []
    federation = Federation(Noting, [normalised, small])
    trace = federation.run(strategy_of(FedMDLF, 2, transfer_steps=3), 2)
    # What fails inside a client is a reply that is not used.
    assert not any(report.train.rejections for report in trace.reports)
    assert len(starts) == 4
    # The second round starts where the first one's transfer ended, not its local phase.
    assert any(not torch.equal(a, b) for a, b in zip(ends[0], starts[2], strict=True))


def test_temperatures_are_two() -> None:
    # The discriminator's changes its gradient alone; the other leaves that as it is.
    plain, hot, soft = (
        golden(GoldenFedAL, FedALClient, **options)
        for options in (
            {},
            {"discriminator_temperature": 1.0},
            {"distillation_temperature": 4.0},
        )
    )

    def gradient(federation: Federation) -> np.ndarray:
        messages = federation.grid.arrays(TRANSFER, sent=True)
        name = client_record(0, ADVERSARIAL_GRADIENT)
        return messages[0][name][LOGITS][0]

    colder = (0.101952, -0.094086, -0.007866)
    np.testing.assert_allclose(gradient(hot), colder, atol=1e-6)
    np.testing.assert_allclose(
        moved(hot)[0] - moved(plain)[0], np.subtract(colder, ADVERSARIAL[0]), atol=2e-6
    )
    np.testing.assert_array_equal(gradient(soft), gradient(plain))
    own = functional.softmax(torch.tensor(F1) / 4, dim=0)
    others = functional.softmax(torch.tensor(F2) / 4, dim=0)
    np.testing.assert_allclose(
        moved(soft)[0] - ADVERSARIAL[0], (own - others) / 4, atol=2e-6
    )


def test_order_of_replies_is_of_no_consequence() -> None:
    runs = [
        Federation(FedALClient),
        Federation(FedALClient, order=lambda replies: replies[::-1]),
    ]
    for federation in runs:
        federation.run(strategy_of(FedAL))
    assert_same_models(*runs)


def lose(client_id: int, message_type: str, times: int = 1) -> Any:
    """Return an order that loses a client's first replies to a message type."""
    left = [times]

    def order(replies: list[Message]) -> list[Message]:
        kept = []
        for reply in replies:
            lost = (
                reply.metadata.src_node_id == 1000 + client_id
                and reply.metadata.message_type == message_type
                and left[0] > 0
            )
            left[0] -= lost
            kept += [] if lost else [reply]
        return kept

    return order


def test_an_absent_client_is_left_out_of_the_rest_of_the_round() -> None:
    federation = Federation(FedALClient, order=lose(1, LOCAL_PHASE))
    strategy = strategy_of(Watched, transfer_steps=2)
    trace = federation.run(strategy, 2)
    asked = [list(outputs) for _, _, (outputs, _) in strategy.seen]
    assert asked == [[0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    # The label of client 2 stays 2, though it is the second of those that answered.
    _, after, (outputs, answer) = strategy.seen[0]
    strategy.discriminator.restore(after)
    logits = np.stack([outputs[k][LOGITS] for k in (0, 2)])
    sent = np.stack([answer.own[k][ADVERSARIAL_GRADIENT][LOGITS] for k in (0, 2)])
    np.testing.assert_array_equal(sent, strategy.discriminator.gradient(logits, [0, 2]))
    first = trace.reports[0]
    assert [row["client"] for row in first.train.rows] == [0, 2]
    assert first.method_metrics["log_clients"] == pytest.approx(math.log(2))
    counts = [
        record["num-responders"]
        for message in federation.grid.sent
        if message.metadata.message_type == TRANSFER
        for record in records_of(message.content, ConfigRecord).values()
    ]
    assert counts == [2] * 4 + [3] * 6


def test_a_newcomer_gets_the_mean_alone() -> None:
    strategy = strategy_of(FedAL, 3)
    strategy.restore(*_without_the_last(strategy))
    outputs = {k: {LOGITS: rows(k, 6).features[:, :3].numpy()} for k in (0, 1, 2)}
    answer = strategy.feedback(outputs, 0)
    assert set(answer.own) == {0, 1}
    np.testing.assert_allclose(
        answer.shared[MEAN_OUTPUTS][LOGITS],
        np.mean([o[LOGITS] for o in outputs.values()], axis=0),
        rtol=1e-6,
    )
    only_new = strategy.feedback({2: outputs[2]}, 1)
    assert not only_new.own


def _without_the_last(strategy: FedAL) -> Any:
    other = strategy_of(FedAL, 2)
    other._labels = {0: 0, 1: 1}
    return other.discriminator.state(), {"labels": [0, 1]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.full((6, 3), np.nan, np.float32), "NaN"),
        (np.full((6, 3), 1e7, np.float32), "beyond 1e"),
        (np.zeros((5, 3), np.float32), "shape"),
        (np.zeros((6, 3)), "dtype"),
    ],
)
def test_bad_outputs_are_not_used(value: np.ndarray, reason: str) -> None:
    class Lying(FedALClient):
        def public_outputs(self, features: torch.Tensor) -> Any:
            found = super().public_outputs(features)
            if self.client_id == 1 and not torch.is_grad_enabled():
                return {LOGITS: torch.from_numpy(value)}
            return found

    federation = Federation(Lying)
    trace = federation.run(strategy_of(FedAL), 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1
    assert reason in rejection.reason
    assert [row["client"] for row in trace.reports[0].train.rows] == [0, 2]


def test_a_round_s_figures() -> None:
    federation = Federation(FedALClient)
    strategy = strategy_of(Watched, transfer_steps=2)
    trace = federation.run(strategy, 2)
    figures = trace.reports[1].method_metrics
    assert figures["log_clients"] == pytest.approx(math.log(3))
    assert 0 < figures["discriminator_loss"] < 3
    assert 0 <= figures["discriminator_accuracy"] <= 1
    wanted = [output_divergence(outputs) for _, _, (outputs, _) in strategy.seen[2:]]
    assert figures["output_divergence"] == pytest.approx(np.mean(wanted))
    for row in trace.reports[0].train.rows:
        assert {"loss", "num_steps", "transfer_loss"} <= set(row)
        assert row["num_steps"] == 2


def test_clients_start_from_stored_states_alone() -> None:
    # Two clients on one resident network must not see each other's parameters.
    shared = small()
    apart = Federation(FedALClient, [small, small])
    together = Federation(FedALClient, [lambda: shared, lambda: shared])
    for client_id in (0, 1):
        start = apart._client(None, client_id).model.state_dict()
        shared.load_state_dict(start)
        together._client(None, client_id)
    runs = []
    for federation in (apart, together):
        strategy = strategy_of(FedAL, 2)
        federation.run(strategy, 2)
        runs.append([federation.store.load(k, strategy.client_versions[k]) for k in (0, 1)])
    for one, other in zip(*runs, strict=True):
        assert equal(one, other)
    assert not equal(*runs[0])


def test_outputs_of_clients_that_agree_do_not_diverge() -> None:
    same = {k: {LOGITS: np.ones((2, 3), np.float32)} for k in range(4)}
    assert output_divergence(same) == pytest.approx(0.0, abs=1e-12)
    apart = np.full((2, 1, 2), -500.0, np.float32)
    apart[0, 0, 0] = apart[1, 0, 1] = 500.0
    found = output_divergence({k: {LOGITS: apart[k]} for k in range(2)})
    assert found == pytest.approx(math.log(2))
    shifted = {k: {LOGITS: apart[k] + 7 * k} for k in range(2)}
    assert output_divergence(shifted) == pytest.approx(math.log(2))


def test_a_mean_is_over_clients_and_rounded_once() -> None:
    big = np.float32(2**24)
    outputs = {k: {LOGITS: np.array([[x]], np.float32)} for k, x in enumerate((big, 1, 1))}
    found = mean_outputs(outputs)[LOGITS]
    assert found.dtype == np.float32
    assert found[0, 0] == np.float32((float(big) + 2) / 3)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="discriminator_widths"):
        strategy_of(FedAL, discriminator_widths="32,x")
    with pytest.raises(ValueError, match="discriminator_temperature"):
        strategy_of(FedAL, discriminator_temperature=0.0)
    with pytest.raises(ValueError, match="distillation_temperature"):
        strategy_of(FedMD, distillation_temperature=math.nan)
    with pytest.raises(ValueError, match="NumPyClient"):
        FedMD(num_classes=3, public_rows=4, wire="numpy")
    with pytest.raises(ValueError, match="public_rows"):
        FedMD(num_classes=3, public_rows=0)
    assert parse_widths(" 32, 265 ") == (32, 265)
    assert parse_widths("") == ()


def test_a_client_without_public_data_says_so() -> None:
    federation = Federation(FedALClient, [small], public=PUBLIC[:0])
    with pytest.raises(Exception, match="no public data"):
        federation.run(strategy_of(FedAL, 1, max_failed_rounds=1), 1)


def test_networks_may_all_differ() -> None:
    federation = Federation(FedALClient, MIXED, training=ADAM)
    trace = federation.run(strategy_of(FedAL, transfer_steps=2), 3)
    assert len(trace.reports[-1].evaluate.rows) == 3
    sizes = [len(model) for model in federation.models()]
    assert len(set(sizes)) == 3
