from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from legacyfn.task import Net, get_weights


def weighted_average(metrics):
    accuracies = [num_examples * m["accuracy"] for num_examples, m in metrics]
    examples = [num_examples for num_examples, _ in metrics]
    return {"accuracy": sum(accuracies) / sum(examples)}


def fit_average(metrics):
    total = sum(n for n, _ in metrics)
    return {"train_loss": sum(n * m["train_loss"] for n, m in metrics) / total}


def on_fit_config(server_round):
    return {"lr": 0.1 * (0.9 ** (server_round - 1)), "round": server_round}


def server_fn(context: Context):
    num_rounds = context.run_config["num-server-rounds"]
    fraction_fit = context.run_config["fraction-fit"]

    parameters = ndarrays_to_parameters(get_weights(Net()))
    strategy = FedAvg(
        fraction_fit=fraction_fit,
        fraction_evaluate=1.0,
        min_available_clients=2,
        initial_parameters=parameters,
        on_fit_config_fn=on_fit_config,
        fit_metrics_aggregation_fn=fit_average,
        evaluate_metrics_aggregation_fn=weighted_average,
    )
    return ServerAppComponents(
        strategy=strategy, config=ServerConfig(num_rounds=num_rounds)
    )


app = ServerApp(server_fn=server_fn)
