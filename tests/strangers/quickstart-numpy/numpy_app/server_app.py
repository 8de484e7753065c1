"""The ServerApp."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from numpy_app.task import make_data, make_model, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds: int = context.run_config["num-server-rounds"]

    arrays = ArrayRecord({name: Array(array) for name, array in make_model().items()})

    strategy = FedAvg(fraction_evaluate=1.0)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )

    model = {name: array.numpy() for name, array in result.arrays.items()}
    np.savez("final_model.npz", **model)


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = {name: array.numpy() for name, array in arrays.items()}
    loss, accuracy = test(model, *make_data(1000, 200))
    return MetricRecord({"accuracy": accuracy, "loss": loss})
