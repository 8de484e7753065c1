"""FedAvg that writes the best model to disk and ends the run when none gets better."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg


class EarlyStop(Exception):
    pass


class SaveAndStop(FedAvg):
    def __init__(self, *, patience: int, fraction_later: float, **kwargs):
        super().__init__(**kwargs)
        self.patience, self.fraction_later = patience, fraction_later
        self.accuracies: list[float] = []
        self.current: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round > 1:
            config["lr"] *= 0.7
            self.fraction_train = self.fraction_later
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        self.current, metrics = super().aggregate_train(server_round, replies)
        return self.current, metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        metrics = super().aggregate_evaluate(server_round, replies)
        assert self.current is not None and metrics is not None
        self.accuracies.append(metrics["accuracy"])
        Path("accuracies.json").write_text(json.dumps(self.accuracies))
        best = self.accuracies.index(max(self.accuracies)) + 1
        if best == server_round:
            torch.save(self.current.to_torch_state_dict(), "best_model.pt")
        if server_round - best >= self.patience:
            raise EarlyStop(f"round {server_round}, best was round {best}")
        return metrics
