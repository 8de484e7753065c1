import argparse
from collections import OrderedDict

import flwr as fl
import torch

from model import Net, load_partition, test, train


class CancerClient(fl.client.NumPyClient):
    def __init__(self, cid, num_clients):
        self.net = Net()
        self.trainset, self.testset = load_partition(cid, num_clients)

    def get_parameters(self, config):
        return [v.cpu().numpy() for v in self.net.state_dict().values()]

    def set_parameters(self, parameters):
        state = OrderedDict(
            {k: torch.tensor(v) for k, v in zip(self.net.state_dict(), parameters)}
        )
        self.net.load_state_dict(state, strict=True)

    def fit(self, parameters, config):
        self.set_parameters(parameters)
        train(
            self.net,
            *self.trainset,
            epochs=config["local_epochs"],
            proximal_mu=config.get("proximal_mu", 0.0),
        )
        return self.get_parameters({}), len(self.trainset[0]), {}

    def evaluate(self, parameters, config):
        self.set_parameters(parameters)
        loss, accuracy = test(self.net, *self.testset)
        return float(loss), len(self.testset[0]), {"accuracy": float(accuracy)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cid", type=int, required=True)
    parser.add_argument("--num-clients", type=int, default=4)
    args = parser.parse_args()
    fl.client.start_numpy_client(
        server_address="127.0.0.1:8080", client=CancerClient(args.cid, args.num_clients)
    )
