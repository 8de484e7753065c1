"""Clients that learn nothing."""

import time

import numpy as np
import torch  # noqa: F401
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def train(seconds: float) -> None:
    """Use the processor for so long: other work on the machine slows it as the rest."""
    square, end = np.ones((64, 64)), time.process_time() + seconds
    while time.process_time() < end:
        square @ square


@app.train()
def answer(message: Message, context: Context) -> Message:
    """Return the model plus a number of the node's own: Flower sends no bytes twice."""
    own = 1 + int(context.node_config["partition-id"])
    changed = {
        name: Array(array.numpy() + np.float32(own))
        for name, array in message.content["arrays"].items()
    }
    train(float(context.run_config.get("train-seconds", 0.0)))
    content = RecordDict(
        {
            "arrays": ArrayRecord(changed),
            "metrics": MetricRecord({"num-examples": own}),
        }
    )
    return Message(content, reply_to=message)
