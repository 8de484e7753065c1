"""Somebody's older app: a NumPyClient behind ``client_fn``; knows no fedsuite."""

from collections import OrderedDict

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from tests.strangers.message_app import Net, load_data


def get_weights(net):
    return [val.cpu().numpy() for _, val in net.state_dict().items()]


def set_weights(net, parameters):
    params_dict = zip(net.state_dict().keys(), parameters, strict=True)
    state_dict = OrderedDict({k: torch.tensor(v) for k, v in params_dict})
    net.load_state_dict(state_dict, strict=True)


class FlowerClient(NumPyClient):
    def __init__(self, partition_id):
        self.net = Net()
        self.x, self.y = load_data(partition_id)

    def fit(self, parameters, config):
        set_weights(self.net, parameters)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.net(self.x), self.y)
            loss.backward()
            optimizer.step()
        metrics = {"train_loss": loss.item(), "round": config["server-round"]}
        return get_weights(self.net), len(self.x), metrics

    def evaluate(self, parameters, config):
        set_weights(self.net, parameters)
        with torch.no_grad():
            logits = self.net(self.x)
        loss = torch.nn.functional.cross_entropy(logits, self.y).item()
        accuracy = (logits.argmax(dim=1) == self.y).float().mean().item()
        return loss, len(self.x), {"eval_acc": accuracy}


def client_fn(context: Context):
    return FlowerClient(context.node_config["partition-id"]).to_client()


app = ClientApp(client_fn=client_fn)
