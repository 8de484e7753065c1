"""A Flower app's own client: model, data and training, with nothing of fedsuite."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH_SIZE = 16

app = ClientApp()


class Net(nn.Sequential):
    """A small network for 8 x 8 images of digits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id: int, num_partitions: int) -> tuple[Tensor, Tensor]:
    """Return one client's images and labels; clients hold few digits each."""
    images, labels = load_digits(return_X_y=True)
    order = torch.argsort(torch.from_numpy(labels), stable=True)
    rows = order.tensor_split(num_partitions)[partition_id]
    return torch.from_numpy(images).float()[rows] / 16, torch.from_numpy(labels)[rows]


def split(context: Context) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training and test part of this node's data: every fifth row is a test row."""
    partition_id = int(context.node_config["partition-id"])
    features, labels = load_data(partition_id, int(context.node_config["num-partitions"]))
    held_out = torch.arange(len(labels)) % 5 == 0
    return (
        (features[~held_out], labels[~held_out]),
        (features[held_out], labels[held_out]),
    )


@torch.no_grad()
def test(net: Net, features: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return mean loss and accuracy."""
    logits = net(features)
    correct = (logits.argmax(dim=1) == labels).float().mean()
    return cross_entropy(logits, labels).item(), correct.item()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's data."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    (features, labels), _ = split(context)
    loss_before, _ = test(net, features, labels)
    rate = float(context.run_config["learning-rate"])
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    steps = int(context.run_config["local-steps"])
    for _ in range(steps):
        batch = torch.randint(len(labels), (BATCH_SIZE,))
        optimizer.zero_grad()
        cross_entropy(net(features[batch]), labels[batch]).backward()
        optimizer.step()
    train_loss, _ = test(net, features, labels)
    metrics = {
        "train_loss": train_loss,
        "loss_before": loss_before,
        "num-examples": len(labels),
        "num-steps": steps,
    }
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received model on this node's held-out data."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, (features, labels) = split(context)
    loss, accuracy = test(net, features, labels)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(labels)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
