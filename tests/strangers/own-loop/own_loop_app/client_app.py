"""The ClientApp."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_loop_app.task import Net, load_data
from own_loop_app.task import test as test_fn
from own_loop_app.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    node = context.node_config
    (images, labels), _ = load_data(node["partition-id"], node["num-partitions"])

    torch.manual_seed(node["partition-id"])
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    train_loss = train_fn(model, images, labels, epochs, lr)

    metrics = {"train_loss": train_loss, "lr": lr, "num-examples": len(labels)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    node = context.node_config
    _, (images, labels) = load_data(node["partition-id"], node["num-partitions"])

    eval_loss, eval_acc = test_fn(model, images, labels)

    metrics = {"eval_loss": eval_loss, "eval_acc": eval_acc, "num-examples": len(labels)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
