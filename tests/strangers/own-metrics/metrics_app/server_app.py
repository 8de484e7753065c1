"""The ServerApp: it averages the metrics itself."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from metrics_app.task import errors, make_data

app = ServerApp()


def last_losses(records: list[RecordDict], weighting_metric_name: str) -> MetricRecord:
    found = [record["train-metrics"] for record in records]
    return MetricRecord(
        {
            "rows": sum(metrics[weighting_metric_name] for metrics in found),
            "first-and-last": [
                float(np.mean([metrics["losses-by-step"][step] for metrics in found]))
                for step in (0, -1)
            ],
        }
    )


def worst_of_all(records: list[RecordDict], weighting_metric_name: str) -> MetricRecord:
    found = [record["eval-metrics"] for record in records]
    return MetricRecord(
        {
            "rows": sum(metrics[weighting_metric_name] for metrics in found),
            "worst-error": max(metrics["worst-error"] for metrics in found),
            "nodes": len(found),
        }
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord({"line": Array(np.zeros(2, dtype=np.float32))})
    settings = ConfigRecord({"learning-rate": context.run_config["learning-rate"]})

    strategy = FedAvg(
        weighted_by_key="samples",
        arrayrecord_key="model",
        configrecord_key="settings",
        train_metrics_aggr_fn=last_losses,
        evaluate_metrics_aggr_fn=worst_of_all,
    )

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=context.run_config["num-server-rounds"],
        train_config=settings,
        evaluate_fn=global_evaluate,
    )

    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: worst error {metrics['worst-error']:.3f}")
    found = [dict(metrics) for metrics in result.evaluate_metrics_clientapp.values()]
    Path("metrics.json").write_text(json.dumps(found))


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    found = errors(arrays["line"].numpy(), *make_data(1000, 200))
    return MetricRecord({"loss": float((found**2).mean())})
