"""The app's server: FedEBA+, which gives more weight to clients with a large loss."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedeba_app.task import Net
from fedsuite.strategies import FedEBAPlus

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say how good the model is on the nodes' test rows."""
    torch.manual_seed(0)
    config = context.run_config
    strategy = FedEBAPlus(
        alpha=float(config["alpha"]), min_available_nodes=int(config["min-nodes"])
    )
    result = strategy.start(
        grid, ArrayRecord(Net().state_dict()), num_rounds=int(config["num-server-rounds"])
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: accuracy {metrics['accuracy']:.3f}")
