"""Stock Flower's clients: one a SuperNode, each with its own rows."""

from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from peers.prepared import Prepared

app = ClientApp()


@cache
def _prepared(folder: str) -> Prepared:
    prepared = Prepared(Path(folder))
    torch.set_num_threads(prepared.settings["threads"])
    return prepared


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's rows and send it back."""
    prepared = _prepared(str(context.run_config["prepared"]))
    settings = prepared.settings
    model = prepared.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = TensorDataset(*prepared.train(int(context.node_config["partition-id"])))
    loader = DataLoader(rows, batch_size=settings["batch-size"], shuffle=True)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings["learning-rate"], fused=True
    )
    left = settings["local-steps"] or settings["local-epochs"] * len(loader)
    total = 0.0
    while left:
        for features, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
            left -= 1
            if not left:
                break
    metrics = {"train-loss": total, "num-examples": len(rows)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content, reply_to=message)
