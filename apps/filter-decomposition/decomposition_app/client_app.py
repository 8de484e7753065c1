"""The app's clients: FedAvg's, inside a client that sends the fast arrays alone."""

from pathlib import Path
from tempfile import gettempdir

from flwr.app import Context

from decomposition_app.task import build_model, load_rows
from fedsuite.clients import DecomposedClient, FedAvgClient
from fedsuite.models import parameter_groups
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import FileStore


def store_for(context: Context) -> FileStore:
    """Return where the node keeps slow arrays between messages.

    Each message may reach a new process. A later run begins anew in the same folder.
    """
    folder = str(context.run_config["state-dir"]) or gettempdir()
    return FileStore(
        Path(folder) / "decomposition-app" / f"{context.run_id}-{context.node_id}"
    )


def make_client(context: Context, client_id: int) -> DecomposedClient:
    """Return the node's client, which answers one message."""
    model = build_model()
    train, test = load_rows(context.node_config)
    training = TrainingOptions(
        local_epochs=int(context.run_config["local-epochs"]),
        learning_rate=float(context.run_config["learning-rate"]),
    )
    client = FedAvgClient(
        model,
        train,
        test,
        training=training,
        client_id=client_id,
        store=store_for(context),
    )
    return DecomposedClient(client, parameter_groups(model))


app = make_client_app(make_client, list(FedAvgClient.ACTIONS))
