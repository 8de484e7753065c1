"""The ServerApp."""

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.metrics import log_loss

from sklearn_app.task import (
    create_model,
    get_model_params,
    load_test_data,
    set_model_params,
)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds: int = context.run_config["num-server-rounds"]

    model = create_model(context.run_config["local-epochs"])
    arrays = ArrayRecord(get_model_params(model))

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )

    ndarrays = result.arrays.to_numpy_ndarrays()
    set_model_params(model, ndarrays)
    np.savez("final_model.npz", coef=model.coef_, intercept=model.intercept_)


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = create_model(1)
    set_model_params(model, arrays.to_numpy_ndarrays())
    X_test, y_test = load_test_data()
    loss = log_loss(y_test, model.predict_proba(X_test))
    return MetricRecord({"accuracy": model.score(X_test, y_test), "loss": loss})
