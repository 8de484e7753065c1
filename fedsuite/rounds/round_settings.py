"""The keys of every round on the server, and one that many methods share."""

from fedsuite.core.settings import Declared, key
from fedsuite.rounds.privacy_rules import PrivacyKeys


class RoundSettings(PrivacyKeys):
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
    connect_timeout: float = key(
        local=True, default=600.0, help="seconds to wait for SuperNodes", above=0.0
    )
    seed: int = key(default=0, help="seed of all random streams", minimum=0)
    server_momentum: float = key(
        default=0.0,
        help="share of the server's last step that is added to the next; 0 is none, 1 "
        "never forgets",
        minimum=0.0,
        maximum=1.0,
    )
    fedvarp: bool = key(
        default=False,
        help="correct clients' updates by FedVARP's memory of their last ones; the server "
        "keeps one model a client; false is off",
    )


class ServerRate(Declared):
    """The server's step, for methods that have one."""

    server_learning_rate: float = key(
        default=1.0,
        help="step of the server towards what it aggregated; 1 takes it whole",
        above=0.0,
    )
