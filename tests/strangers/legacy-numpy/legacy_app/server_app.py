"""The ServerApp: the components of a run, made for each run."""

import csv

import numpy as np
from flwr.common import Context
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from legacy_app.task import loss_of, make_data


def fit_config(server_round: int):
    return {"lr": 0.4 / server_round}


def total_fits(metrics):
    assert all(found["side"] == "client" for _, found in metrics)
    return {"fits": sum(found["fits"] for _, found in metrics)}


def weighted_average(metrics):
    rows = sum(count for count, _ in metrics)
    return {"root": sum(count * found["root"] for count, found in metrics) / rows}


def evaluate(server_round, parameters, config):
    loss = loss_of(parameters, *make_data(1000))
    with open("losses.csv", "a" if server_round else "w", newline="") as file:
        csv.writer(file).writerow([server_round, repr(loss)])
    np.savez("final_model.npz", weight=parameters[0], offset=parameters[1])
    return loss, {"root": loss**0.5}


def server_fn(context: Context):
    strategy = FedAvg(
        fraction_fit=1.0,
        min_available_clients=2,
        evaluate_fn=evaluate,
        on_fit_config_fn=fit_config,
        fit_metrics_aggregation_fn=total_fits,
        evaluate_metrics_aggregation_fn=weighted_average,
    )
    config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
