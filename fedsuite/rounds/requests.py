"""What every message to clients gets, whatever the method asks for."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from fedsuite.core.errors import RunError
from fedsuite.core.metrics import range_of
from fedsuite.messages.records import SERVER_ROUND
from fedsuite.rounds.contract import MethodContract
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.infinite_entries import InfiniteEntries
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
    infinite: InfiniteEntries,
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
