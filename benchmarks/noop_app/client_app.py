"""Clients that learn nothing."""

import torch  # noqa: F401
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model plus 1: Flower would not send bytes again that it sent before."""
    model = message.content["arrays"]["model"].numpy() + 1
    content = RecordDict(
        {
            "arrays": ArrayRecord({"model": Array(model)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
    )
    return Message(content, reply_to=message)
