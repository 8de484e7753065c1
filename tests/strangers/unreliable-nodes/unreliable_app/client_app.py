"""The ClientApp: it seeds nothing, and every second call of one node fails."""

import random

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from unreliable_app.task import make_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    calls = context.state.get("calls", MetricRecord({"count": 0}))
    calls["count"] += 1
    context.state["calls"] = calls
    if context.node_config["partition-id"] == 2 and calls["count"] % 2 == 0:
        raise ConnectionError("no data today")

    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    features = torch.randn(40, 4)
    target = features.sum(dim=1, keepdim=True)
    target += 0.1 * torch.tensor(np.random.normal(size=(40, 1)), dtype=torch.float32)
    rows = random.sample(range(40), 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        loss = ((model(features[rows]) - target[rows]) ** 2).mean()
        loss.backward()
        optimizer.step()

    metrics = {"train_loss": loss.item(), "num-examples": len(rows)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)
