"""A strategy with rounds of its own: it keeps the best model and writes the metrics."""

import io
import json
import time
from collections.abc import Callable, Iterable
from logging import INFO
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result


class CustomFedAvg(FedAvg):
    best_acc_so_far = 0.0

    def _update_best_acc(self, server_round: int, accuracy: float, arrays: ArrayRecord):
        if accuracy > self.best_acc_so_far:
            self.best_acc_so_far = accuracy
            log(INFO, "New best global model found: %f", accuracy)
            torch.save(arrays.to_torch_state_dict(), "best_model.pt")

    def _save_metrics_as_json(self, server_round: int, result: Result) -> None:
        path = Path("results.json")
        rounds = json.loads(path.read_text()) if path.exists() else []
        rounds.append(
            {
                "round": server_round,
                "train": dict(result.train_metrics_clientapp.get(server_round, {})),
                "clients": dict(result.evaluate_metrics_clientapp.get(server_round, {})),
                "server": dict(result.evaluate_metrics_serverapp.get(server_round, {})),
            }
        )
        path.write_text(json.dumps(rounds))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 2:
            config["lr"] = config["lr"] * 0.5
            log(INFO, "Learning rate halved to %f", config["lr"])
        return super().configure_train(server_round, arrays, config, grid)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        log(INFO, "Starting %s strategy:", type(self).__name__)
        self.summary()

        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        result = Result()
        started = time.time()
        if evaluate_fn:
            metrics = evaluate_fn(0, initial_arrays)
            log(INFO, "Initial global evaluation results: %s", metrics)
            if metrics is not None:
                result.evaluate_metrics_serverapp[0] = metrics
        arrays = initial_arrays

        for server_round in range(1, num_rounds + 1):
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", server_round, num_rounds)
            train_replies = grid.send_and_receive(
                messages=self.configure_train(server_round, arrays, train_config, grid),
                timeout=timeout,
            )
            new_arrays, metrics = self.aggregate_train(server_round, train_replies)
            if new_arrays is not None:
                result.arrays = arrays = new_arrays
            if metrics is not None:
                log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
                result.train_metrics_clientapp[server_round] = metrics

            evaluate_replies = grid.send_and_receive(
                messages=self.configure_evaluate(
                    server_round, arrays, evaluate_config, grid
                ),
                timeout=timeout,
            )
            metrics = self.aggregate_evaluate(server_round, evaluate_replies)
            if metrics is not None:
                log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
                result.evaluate_metrics_clientapp[server_round] = metrics

            if evaluate_fn:
                log(INFO, "Global evaluation")
                metrics = evaluate_fn(server_round, arrays)
                log(INFO, "\t└──> MetricRecord: %s", metrics)
                if metrics is not None:
                    result.evaluate_metrics_serverapp[server_round] = metrics
                    self._update_best_acc(server_round, metrics["accuracy"], arrays)
            self._save_metrics_as_json(server_round, result)

        log(INFO, "Strategy execution finished in %.2fs", time.time() - started)
        log(INFO, "Final results:")
        for line in io.StringIO(str(result)):
            log(INFO, "\t%s", line.strip("\n"))
        return result
