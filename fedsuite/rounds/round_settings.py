"""The keys of every round on the server, and those that many methods share."""

import math

from fedsuite.core.settings import Declared, key
from fedsuite.rounds.average_keys import AverageKeys
from fedsuite.rounds.guard import BELIEVED_LOSS, NO_LIMIT, Limit
from fedsuite.rounds.privacy_rules import PrivacyKeys
from fedsuite.rounds.server_optimizer import WITH_MOMENTUM, ServerOptimizerKeys


class RoundSettings(AverageKeys, ServerOptimizerKeys, PrivacyKeys):
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
    fedvarp: bool = key(
        default=False,
        help="correct clients' updates by FedVARP's memory of their last ones; the server "
        "keeps one model a client; false is off",
    )
    max_examples: float | str = key(
        default="auto",
        help="most examples that a client counts with: a number, or medians of the round; "
        "auto counts a client that claims more than 100 medians as the median",
        above=0.0,
        words=("median x 3", "off"),
    )
    max_update_norm: float | str = key(
        default="auto",
        help="longest update, change of a control variate or gradient of a client; longer "
        "ones are scaled down: a number, or medians of the round, which is then held in "
        "memory; auto scales one of more than 100 medians to the median",
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


class LossRatio(Declared):
    """What a loss can do, for methods that weigh clients by their losses."""

    max_loss_ratio: float | str = key(
        default="auto",
        help="largest weight that a loss can give a client, in weights of the client of "
        "median loss; auto counts a loss of more than 4 medians of any round so far as the "
        "median",
        minimum=1.0,
        words=("off",),
    )

    @property
    def loss_ratio(self) -> float:
        """The largest ratio of weights; infinite where no number is given."""
        ratio = self.max_loss_ratio
        return math.inf if isinstance(ratio, str) else ratio

    @property
    def loss_limit(self) -> Limit:
        """What the guard believes of a loss."""
        return NO_LIMIT if self.max_loss_ratio == "off" else BELIEVED_LOSS
