"""The ClientApp."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpy_app.task import load_data
from numpy_app.task import test as test_fn
from numpy_app.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    (features, labels), _ = load_data(context.node_config["partition-id"])

    loss = train_fn(model, features, labels, context.run_config["learning-rate"])

    model_record = ArrayRecord({name: Array(array) for name, array in model.items()})
    metrics = {"train_loss": loss, "num-examples": len(labels)}
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = {name: array.numpy() for name, array in msg.content["arrays"].items()}
    _, (features, labels) = load_data(context.node_config["partition-id"])

    loss, accuracy = test_fn(model, features, labels)

    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(labels)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
