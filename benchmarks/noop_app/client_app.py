"""Clients that learn nothing."""

import numpy as np
import torch  # noqa: F401
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model plus a number of the node's own: Flower sends no bytes twice."""
    own = np.float32(1 + int(context.node_config["partition-id"]))
    model = message.content["arrays"]["model"].numpy() + own
    content = RecordDict(
        {
            "arrays": ArrayRecord({"model": Array(model)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, reply_to=message)
