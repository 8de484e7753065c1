"""Flower's clipping in clients, and what it cannot carry.

Its modifiers ``fixedclipping_mod`` and ``adaptiveclipping_mod`` stand before all messages
of a ClientApp. They answer with an error, unless a message holds a clipping norm and one
array record. Its wrapper then drops the round without a word to the strategy inside, and
the run ends with no model. The wrapper's mark is its key in the settings for training.
"""

from fedsuite.core.errors import ConfigError
from fedsuite.messages.records import TRAIN
from fedsuite.rounds.exchange import Exchange

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
