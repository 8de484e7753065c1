"""The ClientApp."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from stopping_app.task import Net, load_data

app = ClientApp()


def received(msg: Message) -> Net:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(msg: Message, context: Context):
    model, config = received(msg), msg.content["config"]
    images, labels = load_data(context.node_config)
    torch.manual_seed(config["server-round"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    model.train()
    for rows in torch.randperm(len(labels)).split(32):
        optimizer.zero_grad()
        loss = cross_entropy(model(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
    metrics = {"train_loss": loss.item(), "num-examples": len(labels)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = received(msg).eval()
    images, labels = load_data(context.node_config)
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum().item()
    metrics = {"accuracy": right / len(labels), "num-examples": len(labels)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
