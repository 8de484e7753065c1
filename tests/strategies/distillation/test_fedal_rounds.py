"""The course of FedAL's rounds: exchanges, states, who is absent, what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedsuite.clients.distillation.fedal import FedALClient
from fedsuite.messages.records import (
    ADVERSARIAL_GRADIENT,
    LOCAL_PHASE,
    LOGITS,
    MEAN_OUTPUTS,
    TRANSFER,
    Request,
    records_of,
)
from fedsuite.strategies.distillation.fedal import FedAL
from fedsuite.strategies.distillation.public_exchange import output_divergence
from fedsuite.training.store import MemoryStore
from tests.strategies.distillation.public import (
    Federation,
    assert_same_models,
    equal,
    normalised,
    rows,
    small,
    strategy_of,
)


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


@pytest.mark.parametrize("steps_taken", [1, 4])
def test_order_inside_an_exchange(steps_taken: int) -> None:
    federation = Federation(FedALClient)
    strategy = strategy_of(Watched, transfer_steps=3, discriminator_steps=steps_taken)
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
        assert steps == {max(earlier, default=0.0) + steps_taken}
        logits = np.stack([held[LOGITS] for held in outputs.values()])
        strategy.discriminator.restore(after)
        fresh = strategy.discriminator.gradient(logits, list(outputs))
        sent = [answer.own[k][ADVERSARIAL_GRADIENT][LOGITS] for k in outputs]
        weight = np.float32(strategy.adversarial_weight)
        np.testing.assert_array_equal(np.stack(sent), weight * fresh)


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
    client.heard = config
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
    fresh = strategy.discriminator.gradient(logits, [0, 2])
    weight = np.float32(strategy.adversarial_weight)
    np.testing.assert_array_equal(sent, weight * fresh)
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
        (np.zeros((6, 3), np.int64), "dtype"),
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
