"""What may stand between a strategy and its clients.

A layer such as filter decomposition says what travels in a round. It sees each exchange
before it leaves, and each good reply before the strategy does. The base of all strategies
asks its layer; the default lets everything pass.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import ArrayRecord

from fedsuite.messages.records import ConfigValue
from fedsuite.rounds.declaration import ClientNeeds, MethodDeclaration
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.validation import ClientReply


class ExchangeLayer:
    """Lets everything pass."""

    def attach(self, strategy: MethodDeclaration) -> None:
        """Hear of the strategy that the layer belongs to; raise ValueError to refuse it."""

    def values(self) -> dict[str, Any]:
        """Return the values of its keys, by key, which the strategy's rules read too."""
        return {}

    def needs(self) -> ClientNeeds | None:
        """Return what it needs of clients; None leaves that to the strategy."""
        return None

    def before_training(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Return the part of the global arrays that the strategy handles in a round."""
        return arrays

    def after_training(self, arrays: ArrayRecord | None) -> ArrayRecord | None:
        """Return the new global arrays for what the strategy made of its part.

        None stands for the old ones, on both sides.
        """
        return arrays

    def before_evaluation(self, arrays: ArrayRecord) -> None:
        """Hear of the global arrays after a round, whether it is evaluated or not."""

    def outgoing(self, exchange: Exchange) -> Exchange:
        """Return the exchange as it is to be sent."""
        return exchange

    def incoming(self, replies: Iterator[ClientReply]) -> Iterator[ClientReply]:
        """Return the replies to the training message as the strategy is to see them.

        They come one at a time, in client-id order.
        """
        return replies

    def accepted(self, exchange: Exchange, reply: ClientReply) -> None:
        """Hear of a good reply to an exchange of whatever type, as it was sent."""

    def state(self) -> dict[str, ConfigValue]:
        """Return what the layer must remember between rounds."""
        return {}

    def restore(self, scalars: Mapping[str, ConfigValue]) -> None:
        """Take back what :meth:`state` returned."""
