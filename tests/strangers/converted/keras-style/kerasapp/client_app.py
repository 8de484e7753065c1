from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from kerasapp.minikeras import load_data, load_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = load_model()
    model.set_weights(msg.content["arrays"].to_numpy_ndarrays())
    x_train, y_train, _, _ = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    history = model.fit(
        x_train,
        y_train,
        epochs=context.run_config["local-epochs"],
        batch_size=context.run_config["batch-size"],
        verbose=context.run_config["verbose"],
    )
    metrics = {
        "num-examples": len(x_train),
        "train_loss": history["loss"][-1],
        "train_acc": 100 * history["accuracy"][-1],
    }
    content = RecordDict(
        {"arrays": ArrayRecord(model.get_weights()), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = load_model()
    model.set_weights(msg.content["arrays"].to_numpy_ndarrays())
    _, _, x_test, y_test = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    metrics = {"eval_acc": 100 * accuracy, "eval_loss": loss, "num-examples": len(x_test)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
