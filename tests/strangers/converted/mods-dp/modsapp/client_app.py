import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod

from modsapp.mods import timing_mod
from modsapp.task import build, load

app = ClientApp(mods=[timing_mod])


@app.train(mods=[fixedclipping_mod])
def train(msg: Message, context: Context):
    net = build()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y, _, _ = load(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    opt = torch.optim.SGD(net.parameters(), lr=context.run_config["lr"])
    for b in torch.randperm(len(x)).split(16):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[b]), y[b])
        loss.backward()
        opt.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
        reply_to=msg,
    )


@app.evaluate()
def evaluate(msg: Message, context: Context):
    net = build()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, _, x, y = load(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    with torch.no_grad():
        out = net(x)
    metrics = MetricRecord(
        {
            "eval_loss": torch.nn.functional.cross_entropy(out, y).item(),
            "accuracy": (out.argmax(1) == y).float().mean().item(),
            "num-examples": len(x),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
