"""Clients that do nothing."""

import torch  # noqa: F401
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the arrays of the message."""
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)
