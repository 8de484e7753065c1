"""The ClientApp."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import f1_score, log_loss

from sklearn_app.task import create_model, get_model_params, load_data, set_model_params

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = create_model(context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())

    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    X_train, _, y_train, _ = load_data(partition_id, num_partitions)

    # It stops before it has converged.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X_train, y_train)

    metrics = {
        "num-examples": len(X_train),
        "train_logloss": log_loss(y_train, model.predict_proba(X_train)),
    }
    model_record = ArrayRecord(get_model_params(model))
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = create_model(context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())

    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    _, X_test, _, y_test = load_data(partition_id, num_partitions)

    metrics = {
        "num-examples": len(X_test),
        "test_logloss": log_loss(
            y_test, model.predict_proba(X_test), labels=model.classes_
        ),
        "accuracy": model.score(X_test, y_test),
        "f1": f1_score(y_test, model.predict(X_test), average="macro"),
    }
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
