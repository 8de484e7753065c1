"""What becomes of an exchange before it is sent, whatever the method asks for.

Replies are to repeat the settings, the round's number goes along, and infinite entries of
the model are put back. Real nodes get a message each; where all lie in one process, several
clients share one, which costs as much as for one client. What Flower's clipping in clients
could not carry is refused.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np
from flwr.serverapp import Grid

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.metrics import range_of
from fedsuite.messages.records import SERVER_ROUND, TRAIN
from fedsuite.rounds.contract import MethodContract
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.infinite_entries import InfiniteEntries
from fedsuite.rounds.membership import Members
from fedsuite.rounds.validation import Expected


def repeating(strategy: MethodContract, exchange: Exchange) -> Exchange:
    """Return an exchange whose replies are to repeat the method's settings.

    Only where any app could answer: else the form of a reply shows its client.
    """
    if strategy.NEEDS_OF_CLIENT.stores or not exchange.is_plain:
        return exchange
    settings = strategy.settings_in(exchange.config)
    return replace(exchange, expected=replace(exchange.expected, settings=settings))


def completed(
    strategy: MethodContract,
    exchange: Exchange,
    server_round: int,
    steering: Collection[str],
    infinite: InfiniteEntries | None,
) -> Exchange:
    """Return an exchange with the round's number, and with what all replies must hold.

    ``steering`` are the columns that must be finite where they are there.
    """
    needs = strategy.NEEDS_OF_CLIENT
    own = strategy.hosts_clients
    ranges = partial(range_of, phase=exchange.message_type, own=own)

    def limited(expected: Expected) -> Expected:
        return replace(
            expected,
            weight_key=strategy.weighted_by_key,
            steering=steering,
            range_of=ranges,
            infinite=infinite,
            advice=expected.advice or needs.advice,
            advice_of={need.name: need.advice for need in needs.metrics},
        )

    return replace(
        exchange,
        config={**exchange.config, SERVER_ROUND: server_round},
        expected=limited(exchange.expected),
        expected_of={k: limited(e) for k, e in exchange.expected_of.items()},
    )


def steering(strategy: MethodContract) -> set[str]:
    """Return the columns of a client's row in training that steer the method."""
    needed = {need.name for need in strategy.NEEDS_OF_CLIENT.metrics}
    return {name.replace("-", "_") for name in needed.union(strategy.claims())}


def with_infinite(exchange: Exchange, infinite: InfiniteEntries) -> Exchange:
    """Return an exchange whose models have their infinite entries, as it is sent.

    Raises
    ------
    RunError
        If a model holds NaN, which no reply could be told from a broken one by.
    """
    records = [exchange.expected, *exchange.expected_of.values()]
    back = {n for of in records for spec in of.arrays.values() for n in spec}
    if nan := sorted(infinite.holding_nan & back):
        raise RunError(
            f"array {nan[0]} of the model that is sent holds NaN, as a broken model's "
            "does: give another value where there is none, such as 0 or infinity"
        )
    return replace(
        exchange,
        shared=infinite.records(exchange.shared),
        own={k: infinite.records(records) for k, records in exchange.own.items()},
    )


@runtime_checkable
class Gathers(Protocol):
    """A grid each of whose nodes can answer for any client."""

    def clients_per_message(self, asked: int, reply_bytes: int) -> int:
        """Return how many clients to ask in one message, at least 1.

        Parameters
        ----------
        asked
            Clients that are asked in all.
        reply_bytes
            Size of the arrays in a client's reply.
        """


def gathered(exchange: Exchange, members: Members, grid: Grid | None) -> Members:
    """Return the members with the asked clients on as few nodes as the grid allows.

    Clients stay in their order, so replies still come in it.
    """
    if not members.hosted or exchange.expected_of or exchange.own:
        return members
    if not isinstance(grid, Gathers):
        return members
    here = [k for k in exchange.client_ids if k in members.nodes]
    size = grid.clients_per_message(len(here), _reply_bytes(exchange.expected))
    if size == 1:
        return members
    firsts = (here[place - place % size] for place in range(len(here)))
    nodes = {k: members.nodes[first] for k, first in zip(here, firsts, strict=True)}
    return replace(members, nodes=nodes)


def _reply_bytes(expected: Expected) -> int:
    sizes = [
        math.prod(shape) * np.dtype(dtype).itemsize
        for record in expected.arrays.values()
        for shape, dtype in record.values()
    ]
    return sum(sizes)


CLIPPING_NORM = "clipping_norm"

_ADVICE = "clip on the server (DifferentialPrivacyServerSideFixedClipping)"


def check_hello(identity: str) -> None:
    """Refuse clients that must say who they are before the first round."""
    if identity == "partition":
        raise ConfigError(
            "Flower's client-side clipping refuses the hello that identity = 'partition' "
            f"needs: {_ADVICE}, or give another identity"
        )


def check_exchange(exchange: Exchange, method: str) -> None:
    """Refuse an exchange that is no training with one array record each way."""
    sent = {*exchange.shared, *(name for own in exchange.own.values() for name in own)}
    back = exchange.expected.arrays
    if exchange.message_type != TRAIN:
        does = f"also sends {exchange.message_type}"
    elif len(sent) != 1:
        does = f"sends {', '.join(sorted(sent)) or 'none'}"
    elif len(back) != 1:
        does = f"gets {', '.join(sorted(back)) or 'none'}"
    else:
        return
    raise ConfigError(
        "Flower's client-side clipping takes one message a round, with one array record "
        f"each way, and {method} {does}: {_ADVICE}, or choose another method"
    )
