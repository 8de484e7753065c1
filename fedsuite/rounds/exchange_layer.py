"""What may stand between a strategy and its clients.

A layer such as filter decomposition says what travels in a round. It sees each exchange
before it leaves, each good reply as it came, and each reply that counts before the method
does. The default lets everything pass.
"""

from typing import Any, ClassVar, NoReturn

from flwr.app import ArrayRecord

from fedsuite.core.errors import ConfigError
from fedsuite.rounds.declaration import ClientNeeds, MethodDeclaration
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.stage import Stage
from fedsuite.rounds.validation import ClientReply


class ExchangeLayer(Stage):
    """Lets all pass; ``ask`` is given each exchange, ``reply`` each reply that counts."""

    name: ClassVar[str] = "layer"

    def start(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be a strategy, in whose place an app may have imported the layer."""
        name = type(self).__name__
        raise ConfigError(
            f"{name} goes around a strategy, and is none: write "
            f"FedAvg(layer={name}(...)).start(...)"
        )

    def attach(self, strategy: MethodDeclaration) -> None:
        """Hear of the strategy that the layer belongs to; raise ValueError to refuse it."""

    def check(self, strategy: MethodDeclaration) -> None:
        """Raise ValueError at keywords of the strategy that do not go with the layer."""

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

    def accepted(self, exchange: Exchange, reply: ClientReply) -> None:
        """Hear of a good reply to an exchange of whatever type, as it was sent."""
