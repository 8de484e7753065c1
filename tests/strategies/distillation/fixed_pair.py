"""The specification's example of two clients whose logits are fixed: FedMD and FedAL."""

from typing import Any

import numpy as np

from fedsuite.clients.distillation.fedmd import FedMDClient
from fedsuite.strategies.distillation.fedmd import FedMD
from tests.strategies.distillation.public import NO_TRAINING, Federation, Fixed, strategy_of

F1, F2 = (2.0, 0.0, -2.0), (0.0, 1.0, 0.0)


def golden(kind: type[FedMD], client: type[FedMDClient], **options: Any) -> Federation:
    """Run one round of one exchange with the example's two clients, by plain steps."""
    builds = [lambda: Fixed(*F1), lambda: Fixed(*F2)]
    federation = Federation(client, builds, training=NO_TRAINING)
    options = {"transfer_steps": 1} | options
    federation.run(strategy_of(kind, 2, **options), 1)
    return federation


def moved(federation: Federation) -> np.ndarray:
    """Return how far the logits of both clients went."""
    after = np.stack([model[0] for model in federation.models()])
    return np.array([F1, F2]) - after
