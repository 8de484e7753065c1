"""The keywords that every strategy takes, for typed ``**options``."""

from typing import TypedDict

from fedsuite.rounds.exchange import Wire
from fedsuite.rounds.membership import Identity
from fedsuite.rounds.metric_means import MetricsFn


class StrategyOptions(TypedDict, total=False):
    """Keywords of :class:`~fedsuite.rounds.base.FederatedStrategy`."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    clients_per_round: int
    num_clients: int | None
    evaluate_every: int
    num_rounds: int
    quorum: int
    max_failed_rounds: int
    max_examples: float | None
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsFn | None
    evaluate_metrics_aggr_fn: MetricsFn | None
    seed: int
    identity: Identity
    server_momentum: float
    fedvarp: bool
    wire: Wire
    connect_timeout: float
    exchange_timeout: float
    source_hash: str | None
    public_fingerprint: str | None


class FedAvgOptions(StrategyOptions, total=False):
    """Keywords of :class:`~fedsuite.strategies.averaging.fedavg.FedAvg`."""

    server_learning_rate: float
