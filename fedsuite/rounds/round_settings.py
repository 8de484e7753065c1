"""The keys of every round on the server, and those that many methods share."""

from fedsuite.core.settings import Declared, key
from fedsuite.rounds.average_keys import AverageKeys
from fedsuite.rounds.privacy_rules import PrivacyKeys
from fedsuite.rounds.secure_rules import SecureSumKeys
from fedsuite.rounds.server_optimizer import WITH_MOMENTUM, ServerOptimizerKeys


class RoundSettings(AverageKeys, ServerOptimizerKeys, SecureSumKeys, PrivacyKeys):
    """Keys of the rounds, which every strategy takes as keywords too."""

    clients_per_round: int = key(
        default=0, help="clients sampled to train in a round; 0 is all", minimum=0
    )
    evaluate_every: int = key(
        default=1, help="rounds between evaluations on all clients", minimum=1
    )
    quorum: int = key(default=1, help="least good replies for a round to count", minimum=1)
    max_failed_rounds: int = key(
        default=3,
        help="rounds in a row below the quorum before the run ends with an error",
        minimum=1,
    )
    suspect_rounds: int = key(
        default=20,
        help="rounds that a client sits out after the model had to go back to the one "
        "before its far longer update, and twice as many each time again; 0 asks it on",
        minimum=0,
    )
    connect_timeout: float = key(
        local=True, default=600.0, help="seconds to wait for SuperNodes", above=0.0
    )
    seed: int = key(default=0, help="seed of all random streams", minimum=0)
    fedvarp: bool = key(
        default=False,
        help="correct clients' updates by FedVARP's memory of their last ones; the server "
        "keeps one model a client; false is off",
    )
    max_examples: float | str = key(
        default="auto",
        help="most examples that a client counts with: a number, or medians of the round; "
        "auto counts a client that claims more than 100 medians as the median; no client "
        "counts with more than the server knows that it has, unless this is off",
        above=0.0,
        words=("median x 3", "off"),
    )
    max_update_norm: float | str = key(
        default="auto",
        help="longest update of a client, and longest other arrays; longer ones are scaled "
        "down: a number, or medians of the round, which is then held in memory; auto "
        "scales one of more than 10 medians to the median",
        above=0.0,
        words=("median x 3", "off"),
    )


class ServerRate(Declared):
    """The server's step, for methods that have one."""

    server_learning_rate: float = key(
        default=1.0,
        help="step of the server towards what it aggregated; 1 takes it whole",
        above=0.0,
        needs=WITH_MOMENTUM,
    )
