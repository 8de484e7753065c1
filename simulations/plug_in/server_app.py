"""A Flower app's own server: FedAvg swapped for PracFedEBAPlus in one line.

    flwr run simulations/plug_in

The client reports its training loss before and after training under names of its own, which
the strategy is told. With ``flwr.serverapp.strategy.FedAvg()`` in that line the same client
runs FedAvg.
"""

import torch
from client_app import Net
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedsuite.strategies import PracFedEBAPlus

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say how well the last model does."""
    torch.manual_seed(0)
    initial_arrays = ArrayRecord(Net().state_dict())
    strategy = PracFedEBAPlus(loss_key="train_loss", loss_before_key="loss_before")
    num_rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid, initial_arrays, num_rounds=num_rounds)
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: accuracy {metrics['eval_acc']:.3f}")
