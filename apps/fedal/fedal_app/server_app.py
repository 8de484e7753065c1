"""The app's server: FedAL, whose discriminator learns whose outputs it sees."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedal_app.task import NUM_PUBLIC
from fedsuite.strategies import FedAL

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say how good the nodes' own models are on their test rows."""
    config = context.run_config
    strategy = FedAL(
        num_classes=10,
        public_rows=NUM_PUBLIC,
        min_available_nodes=int(config["min-nodes"]),
    )
    # No model is sent: each node has its own.
    result = strategy.start(
        grid, ArrayRecord(), num_rounds=int(config["num-server-rounds"])
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: accuracy {metrics['accuracy']:.3f}")
