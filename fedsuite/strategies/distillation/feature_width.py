"""The width of features, one for all clients of methods that average features."""

from fedsuite.method import FEATURE_WIDTH, Exchange, Expected, FederatedStrategy, RunError
from fedsuite.rounds.kinds import Kind

WIDTH = "feature-width"

LARGEST_WIDTH = 2.0**20
"""No classifier has more inputs."""

LISTED = 5
"""Clients of one width that an error names."""


def agreed_feature_width(strategy: FederatedStrategy) -> int:
    """Ask all clients how wide their features are; return the width that most of them say.

    For use inside a round, before anyone trains. Later shapes are checked for all clients,
    also for those that do not answer. Who says another width is told, and no reply of its
    width will be used.

    Raises
    ------
    RunError
        If no width is that of more than half of those that answer.
    """
    asked = Exchange(
        FEATURE_WIDTH,
        strategy.members(),
        expected=Expected(bounds={WIDTH: (1.0, LARGEST_WIDTH)}),
    )
    clients: dict[float, list[int]] = {}
    for reply in strategy.exchange(asked):
        clients.setdefault(reply.metrics[WIDTH], []).append(reply.client_id)
    common = max(clients, key=lambda width: len(clients[width]))
    others = {width: clients[width] for width in sorted(clients) if width != common}
    if 2 * len(clients[common]) <= sum(map(len, clients.values())):
        widths = "; ".join(
            f"{width:g} at {_named(clients[width])}" for width in sorted(clients)
        )
        raise RunError(
            "clients have features of different widths, which this method cannot average: "
            f"{widths}: give client-models networks that are equally wide before their "
            "last layer, or choose another method"
        )
    for width, client_ids in others.items():
        reason = f"its features are {width:g} wide, and those of most clients {common:g}"
        for client_id in client_ids:
            strategy.remarks.refuse(client_id, Kind.WRONG_METRICS, reason)
    return int(common)


def _named(clients: list[int]) -> str:
    more = f" and {len(clients) - LISTED} more" if len(clients) > LISTED else ""
    what = "client" if len(clients) == 1 else "clients"
    return f"{what} {', '.join(map(str, clients[:LISTED]))}{more}"
