import math

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fraud.task import MLP

app = ServerApp()


def mean_auc(contents, weighted_by_key):
    """Mean AUC over the banks that have both classes, weighted by examples."""
    rows = [next(iter(c.metric_records.values())) for c in contents]
    good = [m for m in rows if not math.isnan(m["auc"])]
    total = sum(m[weighted_by_key] for m in good)
    return MetricRecord(
        {
            "auc": sum(m["auc"] * m[weighted_by_key] for m in good) / total,
            "worst_auc": min(m["auc"] for m in good),
            "banks": len(good),
        }
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=1.0,
        min_available_nodes=6,
        evaluate_metrics_aggr_fn=mean_auc,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(MLP().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
    )
    print(
        "FINAL",
        dict(result.evaluate_metrics_clientapp[context.run_config["num-server-rounds"]]),
    )
