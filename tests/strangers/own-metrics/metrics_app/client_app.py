"""The ClientApp: records of other names, and metrics that are lists."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from metrics_app.task import errors, make_data
from metrics_app.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    line = msg.content["model"]["line"].numpy()
    x, y = make_data(context.node_config["partition-id"])

    line, losses = train_fn(line, x, y, msg.content["settings"]["learning-rate"])

    metrics = {
        "train_loss": losses[-1],
        "losses-by-step": losses,
        "samples": len(x),
    }
    content = RecordDict(
        {
            "model": ArrayRecord({"line": Array(line)}),
            "train-metrics": MetricRecord(metrics),
        }
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    line = msg.content["model"]["line"].numpy()
    found = errors(line, *make_data(100 + context.node_config["partition-id"]))

    metrics = {
        "eval_loss": float((found**2).mean()),
        "worst-error": float(np.abs(found).max()),
        "errors-by-sign": [float(found[found < 0].sum()), float(found[found > 0].sum())],
        "samples": len(found),
    }
    content = RecordDict({"eval-metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
