"""hfapp: A Flower / Hugging Face app."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from transformers import logging

from hfapp.task import get_model, load_data
from hfapp.task import test as test_fn
from hfapp.task import train as train_fn

logging.set_verbosity_error()

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = get_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader, _ = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    train_loss = train_fn(model, trainloader, context.run_config["local-epochs"])
    metrics = MetricRecord(
        {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    )
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=msg,
    )


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = get_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, testloader = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    val_loss, val_accuracy = test_fn(model, testloader)
    metrics = MetricRecord(
        {
            "val_loss": val_loss,
            "val_accuracy": val_accuracy,
            "num-examples": len(testloader.dataset),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
