from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from modsapp.task import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    cfg = context.run_config
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0, min_available_nodes=6)
    strategy = DifferentialPrivacyClientSideFixedClipping(
        strategy,
        noise_multiplier=cfg["noise-multiplier"],
        clipping_norm=cfg["clipping-norm"],
        num_sampled_clients=6,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build().state_dict()),
        num_rounds=cfg["num-server-rounds"],
    )
    print(result.evaluate_metrics_clientapp)
