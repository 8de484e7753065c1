import flwr as fl

from client import CancerClient
from server import strategy

NUM_CLIENTS = 4


def client_fn(cid: str):
    return CancerClient(int(cid), NUM_CLIENTS)


if __name__ == "__main__":
    history = fl.simulation.start_simulation(
        client_fn=client_fn,
        num_clients=NUM_CLIENTS,
        config=fl.server.ServerConfig(num_rounds=4),
        strategy=strategy,
        client_resources={"num_cpus": 1, "num_gpus": 0.0},
    )
    print(history.metrics_distributed["accuracy"])
