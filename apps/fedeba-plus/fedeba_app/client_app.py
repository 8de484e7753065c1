"""The app's clients: they answer FedEBA+'s probe, and train along its fair gradient."""

from flwr.app import Context

from fedeba_app.task import Net, load_rows
from fedsuite.clients import FedEBAPlusClient
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions


def make_client(context: Context, client_id: int) -> FedEBAPlusClient:
    """Return the node's client, which answers one message."""
    train, test = load_rows(context.node_config)
    training = TrainingOptions(
        local_epochs=int(context.run_config["local-epochs"]),
        learning_rate=float(context.run_config["learning-rate"]),
    )
    return FedEBAPlusClient(Net(), train, test, training=training, client_id=client_id)


app = make_client_app(make_client, list(FedEBAPlusClient.ACTIONS))
