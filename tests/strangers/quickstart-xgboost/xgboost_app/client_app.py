"""The ClientApp: it grows trees on top of the received ones and sends the new ones."""

import numpy as np
import xgboost as xgb
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from xgboost_app.task import booster_of, load_data, parameters

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    params, trees = parameters(context), context.run_config["local-epochs"]
    rows, _ = load_data(context.node_config)

    if msg.content["config"]["server-round"] == 1:
        booster = xgb.train(params, rows, num_boost_round=trees)
    else:
        booster = booster_of(msg.content["arrays"], params)
        for _ in range(trees):
            booster.update(rows, booster.num_boosted_rounds())
        rounds = booster.num_boosted_rounds()
        booster = booster[rounds - trees : rounds]

    model = np.frombuffer(booster.save_raw("json"), dtype=np.uint8)
    metrics = {"num-examples": rows.num_row()}
    content = RecordDict({"arrays": ArrayRecord([model]), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    _, rows = load_data(context.node_config)
    booster = booster_of(msg.content["arrays"], parameters(context))
    text = booster.eval_set([(rows, "valid")], booster.num_boosted_rounds() - 1)
    metrics = {"auc": float(text.rpartition(":")[2]), "num-examples": rows.num_row()}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
