"""Stock Flower's server: its FedAvg, with evaluation on the server."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from peers.prepared import Prepared, end_round, evaluate, save_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the prepared experiment."""
    prepared = Prepared(Path(str(context.run_config["prepared"])))
    output = Path(str(context.run_config["output"]))
    settings = prepared.settings
    torch.set_num_threads(settings["threads"])
    model = prepared.model()
    rows = prepared.test()

    def after_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if not server_round:
            return None
        metrics = None
        if prepared.is_evaluated(server_round):
            model.load_state_dict(arrays.to_torch_state_dict())
            loss, right = evaluate(model, rows)
            count = len(rows[1])
            metrics = MetricRecord({"loss": loss / count, "accuracy": right / count})
        end_round(output, server_round)
        return metrics

    count, chosen = settings["num-clients"], settings["clients-per-round"]
    strategy = FedAvg(
        fraction_train=chosen / count,
        fraction_evaluate=0.0,
        min_train_nodes=chosen,
        min_available_nodes=count,
    )
    result = strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=settings["num-rounds"],
        evaluate_fn=after_round,
    )
    save_model(output, result.arrays.to_torch_state_dict())
