"""Several clients of one process in one message, which costs as much as for one client.

Real nodes get a message each. Where all nodes lie in the same process, one can answer for
the clients of others: :class:`Gathers` says for how many. Replies are checked as always.
"""

import math
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from flwr.serverapp import Grid

from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.membership import Members
from fedsuite.rounds.validation import Expected


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
