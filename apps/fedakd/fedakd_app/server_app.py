"""The app's server: FedAKD, which averages the copies of a global model."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedakd_app.task import Net
from fedsuite.strategies import FedAKD

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say how good the nodes' own models are on their test rows."""
    torch.manual_seed(0)
    config = context.run_config
    strategy = FedAKD(min_available_nodes=int(config["min-nodes"]))
    result = strategy.start(
        grid, ArrayRecord(Net().state_dict()), num_rounds=int(config["num-server-rounds"])
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: accuracy {metrics['accuracy']:.3f}")
