"""Client of FedwAvg: counts the examples that the received models forgot."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    Arrays,
    FederatedClient,
    Reply,
    Request,
    Told,
    correct_predictions,
    load_arrays,
)
from fedsuite.core.tasks import OF_CLASSES


class FedwAvgClient(FederatedClient):
    """Trains as FedAvg's client and keeps two marks of each example.

    Every ``fedwavg-every`` rounds it first looks which examples the received model gets
    right, in evaluation mode. An example is forgotten, for good, if it was right at the
    last look and is wrong now. The reply counts the ``forgotten`` and the ``never-learned``
    examples, which were right at no look.
    """

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {"forgotten", "never-learned"}
    KEEPS_STATE = True
    fedwavg_every = Told(int)

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        state = self._look(request)
        reply = super().on_train(request)
        counts = {
            "forgotten": int(state["forgotten"].sum()),
            "never-learned": int((state["learned"] == 0).sum()),
        }
        stored = self.save_state(request, state)
        return Reply(reply.arrays, {**reply.metrics, **counts, **stored})

    def _look(self, request: Request) -> Arrays:
        """Return the marks after this look, or the old ones where none is due."""
        old = self.load_state(request)
        if old and request.server_round - int(old["round"]) < self.fedwavg_every:
            return old
        correct = correct_predictions(self.model, self.train_data)
        if old is None:
            old = dict.fromkeys(("right", "forgotten", "learned"), np.zeros_like(correct))
        return {
            "right": correct,
            "forgotten": old["forgotten"] | (old["right"] & ~correct & 1),
            "learned": old["learned"] | correct,
            "round": np.array(request.server_round),
        }
