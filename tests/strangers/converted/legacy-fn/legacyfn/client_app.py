from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from legacyfn.task import Net, get_weights, load_data, set_weights, test, train


class FlowerClient(NumPyClient):
    def __init__(self, net, data, local_epochs):
        self.net = net
        self.x_train, self.x_test, self.y_train, self.y_test = data
        self.local_epochs = local_epochs

    def fit(self, parameters, config):
        set_weights(self.net, parameters)
        loss = train(self.net, self.x_train, self.y_train, self.local_epochs, config["lr"])
        return (
            get_weights(self.net),
            len(self.x_train),
            {"train_loss": loss, "round": config["round"]},
        )

    def evaluate(self, parameters, config):
        set_weights(self.net, parameters)
        loss, accuracy = test(self.net, self.x_test, self.y_test)
        return loss, len(self.x_test), {"accuracy": accuracy}


def client_fn(context: Context):
    pid = context.node_config["partition-id"]
    num = context.node_config["num-partitions"]
    return FlowerClient(
        Net(), load_data(pid, num), context.run_config["local-epochs"]
    ).to_client()


app = ClientApp(client_fn)
