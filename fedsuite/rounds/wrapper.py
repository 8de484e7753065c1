"""Base of strategies that go around one of ours, as Flower's own wrappers do."""

from collections.abc import Iterable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedsuite.messages.records import Arrays, ConfigValue
from fedsuite.rounds.base import FederatedStrategy
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.quorum import Quorum
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.server_step import ServerExtras
from fedsuite.rounds.startable import StartableStrategy

_INNER = "strategy/"


class StrategyWrapper(StartableStrategy):
    """Passes everything on; a wrapper overrides what it changes.

    Parameters
    ----------
    strategy
        The strategy inside.

    Raises
    ------
    TypeError
        If it is not one of fedsuite's.
    ValueError
        If it has a wrapper already.
    """

    def __init__(self, strategy: FederatedStrategy) -> None:
        if not isinstance(strategy, FederatedStrategy):
            raise TypeError(self.refusal(strategy))
        if type(strategy.layer) is not ExchangeLayer:
            raise ValueError(f"{type(strategy).__name__} has a wrapper already")
        self.strategy = strategy

    def refusal(self, strategy: object) -> str:
        """Return the words for a strategy that cannot be wrapped."""
        return (
            f"{type(self).__name__} goes around strategies of fedsuite, not "
            f"{type(strategy).__module__}.{type(strategy).__name__}"
        )

    # ------------------------------------------------ what the loop and checkpoints use

    @property
    def reports(self) -> dict[str, PhaseReport]:
        """Reports of the round's phases."""
        return self.strategy.reports

    @property
    def round_metrics(self) -> dict[str, float]:
        """Numbers of the round, the wrapper's among them."""
        return self.strategy.round_metrics

    @property
    def extras(self) -> ServerExtras:
        """Server momentum and FedVARP of the strategy."""
        return self.strategy.extras

    @property
    def judge(self) -> Quorum:
        """Judge of the rounds."""
        return self.strategy.judge

    @property
    def num_rounds(self) -> int:
        """Number of rounds planned; 0 if not known."""
        return self.strategy.num_rounds

    @num_rounds.setter
    def num_rounds(self, value: int) -> None:
        self.strategy.num_rounds = value

    @property
    def exchange_timeout(self) -> float:
        """Seconds to wait for replies in the exchanges of a round."""
        return self.strategy.exchange_timeout

    @exchange_timeout.setter
    def exchange_timeout(self, value: float) -> None:
        self.strategy.exchange_timeout = value

    @property
    def client_versions(self) -> dict[int, str]:
        """Client to the version of its stored state."""
        return self.strategy.client_versions

    @client_versions.setter
    def client_versions(self, value: dict[int, str]) -> None:
        self.strategy.client_versions = value

    @property
    def kept_versions(self) -> dict[int, str]:
        """Client to the version that a checkpoint needs."""
        return self.strategy.kept_versions

    @kept_versions.setter
    def kept_versions(self, value: dict[int, str]) -> None:
        self.strategy.kept_versions = value

    def finish_round(self) -> None:
        """Do what must be done after a round."""
        self.strategy.finish_round()

    def own_state(self) -> dict[str, ConfigValue]:
        """Return what the wrapper itself must remember between rounds."""
        return {}

    def restore_own(self, scalars: Mapping[str, ConfigValue]) -> None:
        """Take back what :meth:`own_state` returned."""

    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        """Return what the strategy and the wrapper must remember between rounds."""
        arrays, scalars = self.strategy.state()
        inner = {f"{_INNER}{name}": value for name, value in scalars.items()}
        return arrays, {**self.own_state(), **inner}

    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        """Take back what :meth:`state` returned."""
        inner = {k: v for k, v in scalars.items() if k.startswith(_INNER)}
        self.strategy.restore(arrays, {k[len(_INNER) :]: v for k, v in inner.items()})
        self.restore_own({k: v for k, v in scalars.items() if k not in inner})

    # ------------------------------------------------------------------ Flower's contract

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what the strategy makes of the replies."""
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return what the strategy makes of the replies."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's settings."""
        self.strategy.summary()
