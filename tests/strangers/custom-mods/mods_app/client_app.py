"""The ClientApp: Flower's mods and its own, around all functions and around one."""

from collections.abc import Iterator

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, message_size_mod

from mods_app.mods import clip_update_mod, timing_mod

app = ClientApp(mods=[timing_mod, message_size_mod])
TRUE = np.array([1.0, -2.0, 0.5])


@app.lifespan()
def lifespan(context: Context) -> Iterator[None]:
    lives = context.state.get("lives", MetricRecord({"begun": 0, "ended": 0}))
    lives["begun"] += 1
    context.state["lives"] = lives
    yield
    lives["ended"] += 1


def load_data(context: Context):
    rng = np.random.default_rng(context.node_config["partition-id"])
    features = rng.normal(size=(40, len(TRUE)))
    return features, features @ TRUE + 0.1 * rng.normal(size=40)


@app.train(mods=[clip_update_mod, arrays_size_mod])
def train(msg: Message, context: Context):
    weight = msg.content["arrays"]["weight"].numpy()
    features, target = load_data(context)
    for _ in range(3):
        error = features @ weight - target
        weight = weight - context.run_config["learning-rate"] * features.T @ error / len(
            target
        )
    lives = context.state["lives"]
    metrics = {
        "train_loss": float((error**2).mean()),
        "open-lives": lives["begun"] - lives["ended"],
        "num-examples": len(target),
    }
    content = RecordDict(
        {
            "arrays": ArrayRecord({"weight": Array(weight)}),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    features, target = load_data(context)
    error = features @ msg.content["arrays"]["weight"].numpy() - target
    metrics = {"eval_loss": float((error**2).mean()), "num-examples": len(target)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
