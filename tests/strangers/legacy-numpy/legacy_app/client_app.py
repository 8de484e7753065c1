"""The ClientApp: a NumPyClient for each message."""

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, MetricsRecord

from legacy_app.task import loss_of, make_data


class FlowerClient(NumPyClient):
    def __init__(self, context):
        self.state = context.state
        self.steps = context.run_config["local-steps"]
        self.features, self.target = make_data(context.node_config["partition-id"])

    def get_parameters(self, config):
        return [np.zeros(3), np.zeros(())]

    def fit(self, parameters, config):
        fits = self.state.get("fits", MetricsRecord({"count": 0}))
        fits["count"] += 1
        self.state["fits"] = fits
        weight, offset = parameters
        for _ in range(self.steps):
            error = self.features @ weight + offset - self.target
            weight = weight - config["lr"] * self.features.T @ error / len(error)
            offset = offset - config["lr"] * error.mean()
        metrics = {"fits": fits["count"], "lr": config["lr"], "side": "client"}
        return [weight, np.asarray(offset)], len(error), metrics

    def evaluate(self, parameters, config):
        loss = loss_of(parameters, self.features, self.target)
        return loss, len(self.target), {"root": loss**0.5}


def client_fn(context: Context):
    return FlowerClient(context).to_client()


app = ClientApp(client_fn=client_fn)
