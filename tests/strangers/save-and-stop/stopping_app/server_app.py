"""The ServerApp."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from stopping_app.strategy import EarlyStop, SaveAndStop
from stopping_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    strategy = SaveAndStop(
        patience=context.run_config["patience"],
        fraction_later=context.run_config["fraction-later"],
    )
    try:
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(Net().state_dict()),
            num_rounds=context.run_config["num-server-rounds"],
            train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        )
    except EarlyStop as stop:
        print(f"stopped: {stop}")
