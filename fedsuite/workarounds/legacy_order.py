"""Replies of legacy clients in one order, so that sums of them have the same bits.

Flower's legacy server collects the results of a round from a set of futures, whose order is
that of their addresses. So two runs of one app add the same models in two orders.

Seen in flwr 1.39, 1.41 and 1.42. To delete when Flower keeps the clients' order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replies_in_order() -> Iterator[None]:
    """Sort the results of legacy servers by node inside the block."""
    from flwr.server import server

    originals = {
        name: getattr(server, name) for name in ("fit_clients", "evaluate_clients")
    }
    for name, original in originals.items():
        setattr(server, name, _sorted(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(server, name, original)


def _sorted(original: Any) -> Any:
    def collect(*args: Any, **kwargs: Any) -> Any:
        results, failures = original(*args, **kwargs)
        return sorted(results, key=lambda result: result[0].node_id), failures

    return collect
