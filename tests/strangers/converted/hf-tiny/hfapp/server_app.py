"""hfapp: A Flower / Hugging Face app."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from transformers import logging

from hfapp.task import get_model

logging.set_verbosity_error()

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds = context.run_config["num-server-rounds"]
    global_model = get_model()
    arrays = ArrayRecord(global_model.state_dict())

    strategy = FedAvg(fraction_train=context.run_config["fraction-train"])
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)

    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
