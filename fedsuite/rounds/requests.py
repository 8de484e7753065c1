"""What every message to clients gets, whatever the method asks for."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from fedsuite.core.errors import RunError
from fedsuite.messages.records import EVALUATE, SERVER_ROUND
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.infinite_entries import InfiniteEntries
from fedsuite.rounds.validation import Expected

if TYPE_CHECKING:
    from fedsuite.rounds.strategy import FederatedStrategy


def repeating(strategy: "FederatedStrategy", exchange: Exchange) -> Exchange:
    """Return an exchange whose replies are to repeat the method's settings.

    Only where any app could answer: else the form of a reply shows its client.
    """
    if strategy.NEEDS_OF_CLIENT.stores or not exchange.is_plain:
        return exchange
    names = [name for name in strategy._TOLD if name in exchange.config]
    settings = {name: getattr(strategy, name.replace("-", "_")) for name in names}
    return replace(exchange, expected=replace(exchange.expected, settings=settings))


def completed(
    strategy: "FederatedStrategy",
    exchange: Exchange,
    steering: Collection[str],
    infinite: InfiniteEntries,
) -> Exchange:
    """Return an exchange with the round's number, and with what all replies must hold."""
    needs = strategy.NEEDS_OF_CLIENT

    def limited(expected: Expected) -> Expected:
        return replace(
            expected,
            weight_key=strategy.weighted_by_key,
            steering=steering,
            infinite=infinite,
            advice=expected.advice or needs.advice,
            advice_of={need.name: need.advice for need in needs.metrics},
        )

    return replace(
        exchange,
        config={**exchange.config, SERVER_ROUND: strategy.server_round},
        expected=limited(exchange.expected),
        expected_of={k: limited(e) for k, e in exchange.expected_of.items()},
    )


def steering(strategy: "FederatedStrategy", phase: str, *, own_clients: bool) -> set[str]:
    """Return the columns that the method or the run is steered by, where they come.

    Parameters
    ----------
    strategy, phase
        Whose replies to what.
    own_clients
        Whether the nodes have said that their clients are fedsuite's.
    """
    own = f"{phase}_"
    chosen = {m.removeprefix(own) for m in strategy.chosen_by if m.startswith(own)}
    if phase == EVALUATE:
        # Of fedsuite's own clients a loss that is no number is a model that diverged.
        return chosen | {"loss"} if own_clients else chosen
    needed = {need.name for need in strategy.NEEDS_OF_CLIENT.metrics}
    return chosen | {name.replace("-", "_") for name in needed.union(strategy.claims())}


def with_infinite(exchange: Exchange, infinite: InfiniteEntries) -> Exchange:
    """Return an exchange whose models have their infinite entries, as it is sent.

    Raises
    ------
    RunError
        If a model holds NaN, which no reply could be told from a broken one by.
    """
    if not infinite:
        return exchange
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
