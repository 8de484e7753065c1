"""The ServerApp."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging

from xgboost_app.task import booster_of, load_test_data, parameters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    empty = np.frombuffer(b"", dtype=np.uint8)  # the clients begin

    result = FedXgbBagging().start(
        grid=grid,
        initial_arrays=ArrayRecord([empty]),
        num_rounds=context.run_config["num-server-rounds"],
    )

    booster = booster_of(result.arrays, parameters(context))
    print(f"{booster.num_boosted_rounds()} trees")
    np.savez("scores.npz", scores=booster.predict(load_test_data()))
