"""Stock Flower's clients: one a SuperNode, each with its own rows."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from peers.client_code import prepared_in, trained

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this node's rows and send it back."""
    state, loss, count = trained(
        prepared_in(str(context.run_config["prepared"])),
        message.content["arrays"].to_torch_state_dict(),
        int(context.node_config["partition-id"]),
    )
    metrics = {"train-loss": loss, "num-examples": count}
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)
