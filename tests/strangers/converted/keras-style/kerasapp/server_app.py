import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from kerasapp.minikeras import load_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds = context.run_config["num-server-rounds"]
    model = load_model()
    arrays = ArrayRecord(model.get_weights())
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)
    model.set_weights(result.arrays.to_numpy_ndarrays())
    np.savez("final_model.npz", *model.get_weights())
