"""The ServerApp."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.lifespan()
def lifespan(context: Context) -> Iterator[None]:
    diary = Path("diary.txt")
    diary.write_text("opened\n")
    yield
    diary.write_text(diary.read_text() + "closed\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    result = FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord({"weight": Array(np.zeros(3))}),
        num_rounds=context.run_config["num-server-rounds"],
    )

    np.savez("final_model.npz", weight=result.arrays["weight"].numpy())
    metrics = {
        "train": [dict(found) for found in result.train_metrics_clientapp.values()],
        "evaluate": [dict(found) for found in result.evaluate_metrics_clientapp.values()],
    }
    Path("metrics.json").write_text(json.dumps(metrics))
