import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import roc_auc_score

from fraud.task import MLP, load_bank

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    x, y, _, _ = load_bank(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    model = MLP()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    pos = max(y.sum().item(), 1.0)
    criterion = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor((len(y) - pos) / pos))
    optimizer = torch.optim.Adam(model.parameters(), lr=context.run_config["lr"])
    losses = []
    for _ in range(context.run_config["local-epochs"]):
        for b in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss = criterion(model(x[b]), y[b])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    metrics = MetricRecord({"loss": sum(losses) / len(losses), "num-examples": len(x)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=msg,
    )


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    _, _, x, y = load_bank(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    model = MLP()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        p = torch.sigmoid(model(x))
    if 0 < y.sum() < len(y):
        auc = float(roc_auc_score(y.numpy(), p.numpy()))
    else:
        auc = float("nan")
    metrics = MetricRecord(
        {
            "auc": auc,
            "recall": ((p > 0.5) & (y == 1)).sum().item() / max(y.sum().item(), 1.0),
            "positives": int(y.sum()),
            "num-examples": len(x),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
