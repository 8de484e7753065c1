import torch
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from ownloop.task import build, partition

app = ClientApp()


@app.train()
def train(msg, context):
    net = build()
    net.load_state_dict(msg.content["model"].to_torch_state_dict())
    x, y, _, _ = partition(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    opt = torch.optim.SGD(net.parameters(), lr=msg.content["settings"]["lr"])
    for b in torch.randperm(len(x)).split(20):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[b]), y[b])
        loss.backward()
        opt.step()
    return Message(
        RecordDict(
            {
                "model": ArrayRecord(net.state_dict()),
                "stats": MetricRecord({"loss": loss.item(), "rows": len(x)}),
            }
        ),
        reply_to=msg,
    )


@app.evaluate()
def evaluate(msg, context):
    net = build()
    net.load_state_dict(msg.content["model"].to_torch_state_dict())
    _, _, x, y = partition(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    with torch.no_grad():
        right = (net(x).argmax(1) == y).sum().item()
    return Message(
        RecordDict({"stats": MetricRecord({"correct": right, "rows": len(x)})}),
        reply_to=msg,
    )
