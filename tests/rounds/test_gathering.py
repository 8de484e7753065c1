"""Several clients in one message: which, how many, and to what end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsuite.data import FederatedData
from fedsuite.engines import local
from fedsuite.engines.local import LocalGrid, run_local
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    TRAIN,
    Reply,
    Request,
    unpack_requests,
)
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.membership import Members
from fedsuite.rounds.requests import gathered
from fedsuite.rounds.validation import Expected
from tests.helpers import (
    MEAN_OF_ALL,
    MatrixClient,
    bits,
    digits_experiment,
    matrix_app,
    run,
    strategy_for,
    to_arrays,
)

MEMBERS = Members(range(9), {k: 1000 + k for k in range(9) if k != 3}, hosted=True)
MODEL = {"w": np.zeros((1 << 19,), np.float32)}


def hosts(exchange: Exchange, members: Members = MEMBERS, most: int = 3) -> list[int]:
    """Return the node of each client of an exchange, 0 where it has none."""
    grid = LocalGrid(matrix_app(), 9, most_clients=most)
    nodes = gathered(exchange, members, grid).nodes
    return [nodes.get(k, 1000) - 1000 for k in exchange.client_ids]


def test_clients_share_messages_in_their_order() -> None:
    assert hosts(Exchange(EVALUATE, [0, 1, 2, 3, 5, 8])) == [0, 0, 0, 0, 5, 5]
    assert hosts(Exchange(EVALUATE, [0, 1, 5]), most=1) == [0, 1, 5]


def test_what_is_each_clients_own_stays_apart() -> None:
    apart = [0, 1, 5]
    assert hosts(Exchange(EVALUATE, apart, own={1: {ARRAYS: MODEL}})) == apart
    assert hosts(Exchange(EVALUATE, apart, expected_of={1: Expected()})) == apart
    single = Members(range(9), MEMBERS.nodes)
    assert hosts(Exchange(EVALUATE, apart), single) == apart


def test_replies_of_a_message_are_few_enough_for_memory_and_workers() -> None:
    two_mib = Expected({ARRAYS: {"w": ((1 << 19,), "float32")}})
    assert hosts(Exchange(TRAIN, [0, 1, 2, 4], expected=two_mib)) == [0, 0, 2, 2]
    grid = LocalGrid(matrix_app(), 1, most_clients=32)
    grid._processes = 2
    assert [grid.clients_per_message(n, 0) for n in (10, 50, 1000)] == [1, 3, 32]


class Stranger(MatrixClient):
    """A client class of somebody else's, of which one client lies and one fails."""

    def answer(self, request: Request) -> Reply:
        reply = super().answer(request)
        if self.client_id == 0:
            return Reply(reply.arrays, {**reply.metrics, "loss": float("nan")})
        if self.client_id == 1 and request.message_type == EVALUATE:
            raise ZeroDivisionError
        return reply


def test_each_reply_in_a_message_of_several_is_checked() -> None:
    grid = LocalGrid(matrix_app(Stranger), 3, most_clients=3)
    trace = run(strategy_for("hosted"), grid)
    trained, evaluated = trace.reports[0].phases
    assert [row["client"] for row in trained.rows] == [0, 1, 2]
    assert "loss" not in trained.rows[0]
    assert trace.weights == pytest.approx([MEAN_OF_ALL])
    assert [row["client"] for row in evaluated.rows] == [2]
    reasons = [rejection.reason for rejection in evaluated.rejections]
    assert "metric loss is nan" in reasons[0]
    assert "ZeroDivisionError" in reasons[1]


class Counting(LocalGrid):
    """A grid that counts the clients of each message."""

    counts: list[int]

    def _answer_here(self, message: Message) -> Message:
        metadata = message.metadata
        parts = message.content, metadata.message_type, metadata.group_id, 0
        if not metadata.message_type.startswith("query"):
            self.counts.append(len(unpack_requests(*parts)[0]))
        return super()._answer_here(message)


def lines(folder: Path) -> list[str]:
    """Return the lines of what a run tells of its clients."""
    return (folder / "clients.jsonl").read_text().splitlines()


@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_a_run_is_the_same_with_one_client_a_message(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LocalGrid", Counting)
    at_once: list[int] = []
    read = FederatedData.read_ahead

    def read_ahead(data: FederatedData, client_ids: Sequence[int]) -> None:
        at_once.append(len(client_ids))
        read(data, client_ids)

    monkeypatch.setattr(FederatedData, "read_ahead", read_ahead)
    outcomes: list[Any] = []
    for most in (1, 4):
        assert not at_once
        Counting.counts = []
        monkeypatch.setattr(local, "CLIENTS_PER_MESSAGE", most)
        finished = run_local(
            digits_experiment(model=model, workers=1), tmp_path / str(most)
        )
        assert max(Counting.counts) == most
        outcomes.append(
            (bits(to_arrays(finished.result.arrays)), lines(tmp_path / str(most)))
        )
    assert outcomes[0] == outcomes[1]
    assert max(at_once) == 4
