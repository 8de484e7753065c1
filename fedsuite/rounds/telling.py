"""What a run tells of itself in somebody else's Flower app: what Flower's strategies tell.

A run of fedsuite has its own words for it (:mod:`fedsuite.callbacks.progress`), and logs
one line of settings.
"""

import logging

from fedsuite.core.logs import ServerLogger, in_own_run
from fedsuite.messages.records import (
    EVALUATE,
    TRAIN,
)
from fedsuite.rounds.contract import MethodContract
from fedsuite.rounds.membership import Members

logger = logging.getLogger(__name__)
tell = ServerLogger(__name__).tell


def tell_settings(strategy: MethodContract) -> None:
    """Tell the settings of a strategy."""
    name, needed = type(strategy).__name__, strategy.quorum
    if in_own_run():
        logger.info("%s: seed %d, quorum %d", name, strategy.seed, needed)
        return
    train, evaluate = strategy.sampling[TRAIN], strategy.sampling[EVALUATE]
    tell("\t├──> Sampling (seed %d):", strategy.seed)
    shares = train.fraction, evaluate.fraction
    tell("\t│\t├── Fraction: train (%.2f) | evaluate (%.2f)", *shares)
    tell("\t│\t├── Minimum nodes: train (%d) | evaluate (%d)", train.least, evaluate.least)
    awaited = str(strategy.min_available_nodes)
    if strategy.hosts_clients:
        awaited = f"all ({awaited} has no effect with {strategy.identity!r})"
    tell("\t│\t└── Minimum available nodes: %s", awaited)
    tell("\t├──> Needed of clients: %s", strategy.NEEDS_OF_CLIENT.words)
    tell("\t├──> Least number of good replies: %d", needed)
    tell("\t└──> Keys in records:")
    tell("\t\t├── Weighted by: '%s'", strategy.weighted_by_key)
    tell("\t\t├── ArrayRecord key: '%s'", strategy.arrayrecord_key)
    tell("\t\t└── ConfigRecord key: '%s'", strategy.configrecord_key)


def tell_sampled(phase: str, sampled: int, members: Members) -> None:
    """Tell how many were asked."""
    who = "clients" if members.hosted else "nodes"
    total = len(members.client_ids)
    tell("configure_%s: Sampled %d %s (out of %d)", phase, sampled, who, total)


def tell_replies(name: str, good: int, asked: int) -> None:
    """Tell how many of those who were asked gave a reply that was used."""
    tell("%s: Received %d results and %d failures", name, good, asked - good)
