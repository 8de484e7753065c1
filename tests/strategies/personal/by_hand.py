"""One client of a curve (x - c)^2 / 2, asked by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsuite.core.errors import RunError
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Request, model_record
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.strategies.drift.corrected import QuadraticLoss
from tests.strategies.fair.quadratic import Point


@dataclass
class Answered:
    """What one training left behind: numbers sent by record and kept, and the client."""

    records: dict[str, float]
    kept: dict[str, float]
    client: FederatedClient
    metrics: Mapping[str, Any]

    @property
    def sent(self) -> float:
        """The number of the only record."""
        (number,) = self.records.values()
        return number


def train_once(
    client_class: type[FederatedClient],
    told: Mapping[str, Any],
    kept: Mapping[str, float] | None = None,
    *,
    received: float = 0.0,
    others: Sequence[float] = (),
    centre: float = 1.0,
    **training: Any,
) -> Answered:
    """Train in one step of 0.1, unless told else, with what the client kept.

    The client has two rows, both of the curve around ``centre``. ``others`` are received
    beside the first model.
    """
    store = MemoryStore()
    if kept:
        store.save(
            0,
            "old",
            {n: np.full((1,) if n.endswith("x") else (), v) for n, v in kept.items()},
            set(),
        )
    data = Split(
        torch.tensor([[0.5, centre]] * 2, dtype=torch.float64), torch.zeros(2).long()
    )
    client = type("Quadratic", (QuadraticLoss, client_class), {})(
        Point(),
        data,
        data,
        store=store,
        training=TrainingOptions(**{"local_steps": 1, "batch_size": 1, **training}),
    )
    request = Request(
        "train",
        0,
        arrays={
            ARRAYS: {"x": np.full(1, received)},
            **{model_record(m): {"x": np.full(1, x)} for m, x in enumerate(others, 1)},
        },
        config={"server-round": 1, **told},
        start_version="old" if kept else "",
        new_version="new",
    )
    reply = client.answer(request)
    try:
        state = store.load(0, "new")
    except RunError:
        state = {}
    numbers = {n: float(a.reshape(-1)[0]) for n, a in state.items()}
    records = {n: float(a["x"][0]) for n, a in reply.arrays.items() if "x" in a}
    return Answered(records, numbers, client, reply.metrics)
