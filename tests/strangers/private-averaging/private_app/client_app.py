"""The ClientApp: it clips, or clips and adds noise, where the run config says so."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod

from private_app.task import load_data, score, train_model

app = ClientApp()


def private_mod(msg, context, call_next):
    config = context.run_config
    match config["privacy.side"]:
        case "client":
            return fixedclipping_mod(msg, context, call_next)
        case "adaptive":
            return adaptiveclipping_mod(msg, context, call_next)
        case "local":
            norm = config["privacy.clipping-norm"]
            epsilon, delta = config["privacy.local.epsilon"], config["privacy.local.delta"]
            return LocalDpMod(norm, 0.01, epsilon, delta)(msg, context, call_next)
    return call_next(msg, context)


@app.train(mods=[private_mod])
def train(msg: Message, context: Context):
    node, server_round = context.node_config, msg.content["config"]["server-round"]
    np.random.seed(100 * server_round + node["partition-id"])
    model = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    (features, labels), _ = load_data(node["partition-id"], node["num-partitions"])

    loss = train_model(model, features, labels, context.run_config["learning-rate"])

    model_record = ArrayRecord({name: Array(array) for name, array in model.items()})
    metrics = {"train_loss": loss, "num-examples": len(labels)}
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    node = context.node_config
    model = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    _, (features, labels) = load_data(node["partition-id"], node["num-partitions"])
    loss, accuracy = score(model, features, labels)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(labels)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
