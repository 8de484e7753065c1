"""Several clients of one process in one message, which costs as much as for one client.

Real nodes get a message each. Of an engine whose nodes lie in the same process one node can
answer for others' clients too: :class:`Gathers` says for how many. Checks of replies are
the same.
"""

from dataclasses import replace
from typing import Protocol, runtime_checkable

from flwr.serverapp import Grid

from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.membership import Members


@runtime_checkable
class Gathers(Protocol):
    """A grid each of whose nodes can answer for any client."""

    @property
    def clients_per_message(self) -> int:
        """Most clients of one message whose replies hold no arrays."""


def gathered(exchange: Exchange, members: Members, grid: Grid | None) -> Members:
    """Return the members with the asked clients on as few nodes as the grid allows.

    Clients stay in their order. Replies with arrays come one client at a time, so that
    their memory does not grow with the number of clients.
    """
    spec = exchange.expected
    if not members.hosted or spec.arrays or exchange.expected_of or exchange.own:
        return members
    if not isinstance(grid, Gathers) or grid.clients_per_message == 1:
        return members
    here = [k for k in exchange.client_ids if k in members.nodes]
    size = grid.clients_per_message
    firsts = (here[place - place % size] for place in range(len(here)))
    nodes = {k: members.nodes[first] for k, first in zip(here, firsts, strict=True)}
    return replace(members, nodes=nodes)
