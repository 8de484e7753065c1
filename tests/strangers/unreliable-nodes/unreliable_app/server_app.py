"""The ServerApp: some of the nodes train in each round, and none evaluates."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from unreliable_app.task import make_model

app = ServerApp()


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    features = torch.eye(4)
    with torch.no_grad():
        loss = ((model(features) - 1) ** 2).mean().item()
    return MetricRecord({"loss": loss})


@app.main()
def main(grid: Grid, context: Context) -> None:
    result = FedAvg(
        fraction_train=context.run_config["fraction-train"], fraction_evaluate=0.0
    ).start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
