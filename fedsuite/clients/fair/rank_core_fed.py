"""Client of Rank-Core-Fed: ranks the models that stand for election."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedsuite.client import (
    NUM_EXAMPLES,
    RANK,
    RANKING,
    Reply,
    Request,
    load_arrays,
    mean_loss,
    model_record,
)
from fedsuite.clients.fair.probed import ProbedClient
from fedsuite.core.tasks import OF_CLASSES


class RankCoreFedClient(ProbedClient):
    """Trains as FedAvg's client; ranks models by its loss on validation rows.

    A client without validation rows ranks by its loss on training rows.
    """

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    SENDS: ClassVar[frozenset[str]] = ProbedClient.SENDS | {f"{RANKING}/{RANKING}"}
    ACTIONS: ClassVar[Mapping[str, str]] = {**ProbedClient.ACTIONS, RANK: "on_rank"}

    def on_rank(self, request: Request) -> Reply:
        """Return the numbers of the models, the one of least loss first."""
        validation = self.validation_data
        rows = validation if validation is not None and len(validation) else self.train_data
        losses = []
        with self.layer_stream("rank", request.server_round):
            for number in range(len(request.arrays)):
                load_arrays(self.model, request.arrays[model_record(number)])
                losses.append(mean_loss(self.model, rows))
        ranking = np.argsort(losses, kind="stable").astype(np.int64)
        return Reply({RANKING: {RANKING: ranking}}, {NUM_EXAMPLES: len(self.train_data)})
