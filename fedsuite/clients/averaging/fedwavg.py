"""Client of FedwAvg: counts the examples that the received models forgot."""

import numpy as np

from fedsuite.messages.records import ARRAYS, Arrays, Reply, Request
from fedsuite.models.arrays import load_arrays
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluation import correct_predictions
from fedsuite.training.told import Told


class FedwAvgClient(FederatedClient):
    """Trains as FedAvg's client and keeps two marks for each of its examples.

    Before training it looks which examples the received model gets right, in evaluation
    mode, every ``fedwavg-every`` rounds (1 if the message does not say). An example that
    was right at the last look and is wrong now is forgotten, for good. The reply tells how
    many are ``forgotten``, and how many ``never-learned``: right at no look so far.
    """

    fedwavg_every = Told(int)

    def on_train(self, request: Request) -> Reply:
        """Look, then train."""
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
        if (
            old is not None
            and request.server_round - int(old["round"]) < self.fedwavg_every
        ):
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
