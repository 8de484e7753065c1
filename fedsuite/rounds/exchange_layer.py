"""What may stand between a strategy and its clients.

A wrapper such as filter decomposition sees each exchange before it leaves, and each good
reply before the strategy does. The base of all strategies asks its layer; the default lets
everything pass.
"""

from collections.abc import Iterator

from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.validation import ClientReply


class ExchangeLayer:
    """Lets everything pass."""

    def needs(self) -> ClientNeeds | None:
        """Return what it needs of clients; None leaves that to the strategy."""
        return None

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
