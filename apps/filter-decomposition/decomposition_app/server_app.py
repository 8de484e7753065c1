"""The app's server: FedAvg, with filter decomposition between it and the clients."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from decomposition_app.task import build_model
from fedsuite.models import parameter_groups
from fedsuite.strategies import FedAvg, FilterDecomposition

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say how good the model is on the nodes' test rows."""
    config = context.run_config
    model = build_model()
    layer = FilterDecomposition(
        groups=parameter_groups(model),
        coefficient_period=int(config["coefficient-period"]),
    )
    # Any strategy whose clients train one shared model will do.
    strategy = FedAvg(layer=layer, min_available_nodes=int(config["min-nodes"]))
    result = strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=int(config["num-server-rounds"])
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: accuracy {metrics['accuracy']:.3f}")
