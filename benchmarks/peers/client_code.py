"""What a client of stock Flower does, as its own templates are written: no Flower in it."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from peers.prepared import Prepared

State = dict[str, Tensor]


@cache
def prepared_in(folder: str) -> Prepared:
    """Return what was prepared, read once a process."""
    prepared = Prepared(Path(folder))
    torch.set_num_threads(prepared.settings["threads"])
    return prepared


def trained(prepared: Prepared, state: State, client: int) -> tuple[State, float, int]:
    """Train a model on a client's rows; return its new state, its loss and the rows."""
    settings = prepared.settings
    model = prepared.model()
    model.load_state_dict(state)
    rows = TensorDataset(*prepared.train(client))
    loader = DataLoader(rows, batch_size=settings["batch-size"], shuffle=True)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings["learning-rate"], fused=True
    )
    left = settings["local-steps"] or settings["local-epochs"] * len(loader)
    total = 0.0
    while left:
        for features, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
            left -= 1
            if not left:
                break
    return model.state_dict(), total, len(rows)
