"""The app's clients: each has a model of its own, which learns from the global one."""

from pathlib import Path
from tempfile import gettempdir

import torch
from flwr.app import Context

from fedakd_app.task import Net, load_rows
from fedsuite.clients import FedAKDClient
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import FileStore


def store_for(context: Context) -> FileStore:
    """Return where the node keeps its model between messages.

    Each message may reach a new process. A later run begins anew in the same folder.
    """
    folder = str(context.run_config["state-dir"]) or gettempdir()
    return FileStore(Path(folder) / "fedakd-app" / f"{context.run_id}-{context.node_id}")


def make_client(context: Context, client_id: int) -> FedAKDClient:
    """Return the node's client, which answers one message."""
    torch.manual_seed(client_id)  # the first weights of its own model
    train, test = load_rows(context.node_config)
    training = TrainingOptions(
        local_epochs=int(context.run_config["local-epochs"]),
        learning_rate=float(context.run_config["learning-rate"]),
    )
    return FedAKDClient(
        Net(),
        train,
        test,
        training=training,
        client_id=client_id,
        store=store_for(context),
    )


app = make_client_app(make_client, list(FedAKDClient.ACTIONS))
