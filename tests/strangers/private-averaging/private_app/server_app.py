"""The ServerApp: a wrapper of Flower around FedAvg."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.common.config import unflatten_dict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from private_app.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    privacy = unflatten_dict(context.run_config)["privacy"]
    noise, norm = privacy["noise-multiplier"], privacy["clipping-norm"]
    sampled = privacy["num-sampled-clients"]
    strategy = FedAvg(min_available_nodes=sampled, min_train_nodes=sampled)
    match privacy["side"]:
        case "server":
            strategy = DifferentialPrivacyServerSideFixedClipping(
                strategy, noise, norm, sampled
            )
        case "client":
            strategy = DifferentialPrivacyClientSideFixedClipping(
                strategy, noise, norm, sampled
            )
        case "adaptive":
            strategy = DifferentialPrivacyClientSideAdaptiveClipping(
                strategy, noise, sampled, initial_clipping_norm=norm
            )

    np.random.seed(7)  # the noise of the server
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({n: Array(a) for n, a in make_model().items()}),
        num_rounds=context.run_config["num-server-rounds"],
    )

    model = {name: array.numpy() for name, array in result.arrays.items()}
    np.savez("final_model.npz", **model)
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['eval_acc']:.3f}")
