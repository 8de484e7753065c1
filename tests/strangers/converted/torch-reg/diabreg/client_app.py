import torch
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from diabreg.task import load, make_model

app = ClientApp()


def setup(msg, context):
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data = load(context.node_config["partition-id"], context.node_config["num-partitions"])
    return model, data


@app.train()
def train(msg, context):
    model, (x, y, _, _) = setup(msg, context)
    opt = torch.optim.Adam(model.parameters(), lr=context.run_config["lr"])
    for _ in range(context.run_config["local-epochs"]):
        for b in torch.randperm(len(x)).split(16):
            opt.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x[b]), y[b])
            loss.backward()
            opt.step()
    with torch.no_grad():
        mse = torch.nn.functional.mse_loss(model(x), y).item()
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"mse": mse, "num-examples": len(x)}),
            }
        ),
        reply_to=msg,
    )


@app.evaluate()
def evaluate(msg, context):
    model, (_, _, x, y) = setup(msg, context)
    with torch.no_grad():
        err = model(x) - y
    return Message(
        RecordDict(
            {
                "metrics": MetricRecord(
                    {
                        "mae": err.abs().mean().item(),
                        "rmse": err.pow(2).mean().sqrt().item(),
                        "num-examples": len(x),
                    }
                )
            }
        ),
        reply_to=msg,
    )
