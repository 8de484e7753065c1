"""The ClientApp: several functions of one kind, a count of its own, and a fault."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def load_data(context: Context):
    rng = np.random.default_rng(context.node_config["partition-id"])
    return 3.0 + rng.normal(size=25)


def answer(msg: Message, context: Context, centre: np.ndarray) -> Message:
    counts = context.state.get("counts", MetricRecord({"trained": 0}))
    counts["trained"] += 1
    context.state["counts"] = counts
    metrics = {
        "partition": context.node_config["partition-id"],
        "trained": counts["trained"],
    }
    content = RecordDict(
        {
            "model": ArrayRecord({"centre": Array(np.asarray(centre))}),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content, reply_to=msg)


@app.train("coarse")
def coarse(msg: Message, context: Context):
    return answer(msg, context, np.median(load_data(context)))


@app.train("fine")
def fine(msg: Message, context: Context):
    if (
        context.node_config["partition-id"] == context.run_config["failing-partition"]
        and msg.content["config"]["server-round"] == 2
    ):
        raise RuntimeError("the disk is full")
    centre = msg.content["model"]["centre"].numpy()
    rate = msg.content["config"]["rate"]
    return answer(msg, context, centre + rate * (load_data(context).mean() - centre))


@app.evaluate("spread")
def spread(msg: Message, context: Context):
    far = np.abs(load_data(context) - msg.content["model"]["centre"].numpy())
    metrics = {
        "partition": context.node_config["partition-id"],
        "far": float(far.max()),
        "trained": context.state["counts"]["trained"],
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
