"""A federation of five that add up under masks, with losses and tampering."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from fedsuite.core.rng import numpy_stream
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import ARRAYS, TRAIN, Arrays, Reply, Request, client_record
from fedsuite.messages.secure_sums import (
    KEYS,
    RECORD,
    SHARES,
    Part,
    Terms,
    words_of,
)
from fedsuite.rounds.secure_rules import SECURE_STAGES
from fedsuite.rounds.secure_sums import SecureSums
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import make_client_app
from fedsuite.training.secure_client import SecureClient
from fedsuite.workarounds.identity import flower_identity

NUM_CLIENTS, THRESHOLD = 5, 4
COUNTS = (11, 200, 35, 1000, 77)

Lost = Mapping[tuple[str, int], str]
"""Message type and client to what is lost of it: the request or the reply."""

Tamper = Callable[[str, int, ArrayRecord], None]
"""Gets type, client and record of each reply, to change it."""


def model(size: int = 60) -> Arrays:
    half = size // 2
    return {
        "weight": np.linspace(-3, 3, half, dtype=np.float32).reshape(2, -1),
        "bias": np.zeros(size - half - 2),
        "scalar": np.array(0.25, np.float32),
        "counter": np.array(7),
    }


class Moving:
    """Adds a change of its own to the model."""

    def __init__(self, client_id: int) -> None:
        self._id = client_id

    def answer(self, request: Request) -> Reply:
        draws = np.random.default_rng([self._id, request.server_round])
        trained = {
            name: (a + draws.uniform(-0.4, 0.4, a.shape)).astype(a.dtype)
            if a.dtype.kind == "f"
            else np.asarray(a + 10 * (self._id + 1))
            for name, a in request.arrays[ARRAYS].items()
        }
        metrics = {"num-examples": COUNTS[self._id % len(COUNTS)], "train-loss": 1.0}
        return Reply({ARRAYS: trained}, metrics)


class Faulty(LocalGrid):
    """Loses requests or replies, tampers, and keeps what it saw."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[tuple[str, int, Message, Message]] = []
        self.lost: Lost = {}
        self.tamper: Tamper | None = None

    def _answers(self, messages: Sequence[Message]) -> Iterator[Message]:
        for message in messages:
            kind, client_id = (
                message.metadata.message_type,
                message.metadata.dst_node_id - 1000,
            )
            how = self.lost.get((kind, client_id), "")
            if how == "request":
                continue
            (reply,) = list(super()._answers([message]))
            self.seen.append((kind, client_id, message, reply))
            name = client_record(client_id, RECORD)
            if self.tamper is not None and reply.has_content() and name in reply.content:
                record = reply.content[name]
                assert isinstance(record, ArrayRecord)
                self.tamper(kind, client_id, record)
            if how != "reply":
                yield reply


def flipped(record: ArrayRecord, name: str, place: int, bit: int = 0) -> None:
    """Change one bit of an array in a record."""
    changed = np.array(record[name].numpy())
    if changed.size:
        flat = changed.reshape(-1)
        flat[place % flat.size] ^= np.asarray(1 << bit, changed.dtype)
        record[name] = Array(changed)


@dataclass
class Outcome:
    """What became of some rounds."""

    arrays: Arrays
    strategy: FedAvg
    grid: Faulty

    @property
    def sums(self) -> SecureSums:
        (stage,) = self.strategy.secure_sums
        assert isinstance(stage, SecureSums)
        return stage

    @property
    def total(self) -> Part | None:
        return self.sums.total


def run(
    lost: Lost | None = None,
    tamper: Tamper | None = None,
    *,
    start: Arrays | None = None,
    num_rounds: int = 1,
    num_clients: int = NUM_CLIENTS,
    strategy_class: type[FedAvg] = FedAvg,
    grid_class: type[Faulty] = Faulty,
    sites: Mapping[int, Mapping[str, Any]] | None = None,
    **keys: Any,
) -> Outcome:
    """Run rounds of FedAvg; ``sites`` has node-configs, keywords go to the strategy."""
    given: dict[str, Any] = {
        "secure_aggregation": "masked",
        "reconstruction_threshold": THRESHOLD,
        "max_failed_rounds": 1000,
        "most_examples": 1000,
    }
    given |= keys
    if given["secure_aggregation"] == "off":
        given = {"max_failed_rounds": 1000}
    how = given.get("secure_aggregation")

    def client_fn(context: Any, client_id: int) -> Any:
        client = Moving(client_id)
        if how is None:
            return client
        context = copy.copy(context)
        context.node_config = {**context.node_config, **(sites or {}).get(client_id, {})}
        return SecureClient(client, context, masked=how == "masked")

    grid = grid_class(make_client_app(client_fn, [TRAIN, *SECURE_STAGES]), num_clients)
    grid.lost, grid.tamper = lost or {}, tamper
    strategy = strategy_class(
        identity="partition", num_clients=num_clients, fraction_evaluate=0.0, **given
    )
    arrays = model() if start is None else start
    with flower_identity():
        result = strategy.start(grid, to_record(arrays), num_rounds)
    return Outcome(to_arrays(result.arrays), strategy, grid)


def bare_sum(start: Arrays, client_ids: Sequence[int], terms: Terms) -> Part:
    """Return the sum of the clients' words in the first round, without a protocol."""
    total = Part.zero(terms)
    for client_id in client_ids:
        config = {"server-round": 1}
        reply = Moving(client_id).answer(Request(TRAIN, client_id, {ARRAYS: start}, config))
        stream = numpy_stream(0, "secure-sum", 1, client_id)
        trained = reply.arrays[ARRAYS]
        total = total.plus(words_of(start, trained, reply.metrics, terms, stream))
    return total


def plain_mean(start: Arrays, client_ids: Sequence[int]) -> Arrays:
    """Return the mean by examples in float64."""
    rows = sum(COUNTS[k] for k in client_ids)
    means = {name: np.zeros(array.shape) for name, array in start.items()}
    for k in client_ids:
        config = {"server-round": 1}
        reply = Moving(k).answer(Request(TRAIN, k, {ARRAYS: start}, config))
        for name, array in reply.arrays[ARRAYS].items():
            means[name] = means[name] + np.asarray(array, np.float64) * COUNTS[k] / rows
    return means


def same_words(one: Part, other: Part) -> bool:
    return np.array_equal(one.head, other.head) and np.array_equal(one.body, other.body)


def same_model(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in other)


def check(lost: Lost, num_clients: int, **given: Any) -> bool | None:
    """Run a round; return whether it is right, None of one that left the model alone."""
    start = model(20)
    outcome = run(lost, start=start, num_clients=num_clients, **given)
    if outcome.total is None:
        assert same_model(outcome.arrays, start)
        return None
    gone = {k for kind, k in lost if kind in (KEYS, SHARES, TRAIN)}
    active = [k for k in range(num_clients) if k not in gone]
    assert outcome.sums.terms is not None
    return same_words(outcome.total, bare_sum(start, active, outcome.sums.terms))
