"""What several clients of one message do sooner together than one by one.

The replies are those of the clients by themselves, bit for bit. Where a client does
anything else, it is asked by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from fedsuite.data import FederatedData
from fedsuite.messages.records import ARRAYS, EVALUATE, TRAIN, Reply, Request
from fedsuite.models.assignment import Networks
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluations import evaluates_as_base, evaluations
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.scoring import Scoring
from fedsuite.training.told import told_of
from fedsuite.training.trainings import trainings, trains_as_base, trains_plainly


@dataclass(frozen=True)
class Together:
    """Answers for the clients of a message.

    Parameters
    ----------
    client_class, data, networks, training, scoring, seed
        What the clients are made of.
    resident
        Number of a network to the model that clients share.
    plain
        Whether nothing changes what a client answers: no privacy, self-regularisation,
        decomposition, lie or planned fault.
    evaluates
        Whether nothing changes what a client says of a model: liars and faults leave that
        alone.
    """

    client_class: type[FederatedClient]
    data: FederatedData
    networks: Networks
    training: TrainingOptions
    scoring: Scoring
    seed: int
    resident: Callable[[int], nn.Module]
    plain: bool
    evaluates: bool

    def answers(self, requests: Sequence[Request]) -> Mapping[int, Reply]:
        """Return replies by client; the data of others is read together."""
        client_ids = [request.client_id for request in requests]
        kind, config = requests[0].message_type, requests[0].config
        if not config.keys().isdisjoint(told_of(self.client_class)):
            # The clients read settings, and say so in their replies.
            return {}
        model = self._model(requests)
        if model is not None and kind == EVALUATE and self._evaluates_plainly():
            return evaluations(model, requests, self.data.client_tests(client_ids))
        self.data.read_ahead(client_ids)
        if model is None or kind != TRAIN or not self._trains_plainly(model):
            return {}
        rows = (self.data.client(client_id).train for client_id in client_ids)
        return trainings(model, requests, rows, self.training, self.seed)

    def _model(self, requests: Sequence[Request]) -> nn.Module | None:
        """Return the network of all clients, if all got the same whole model."""
        received = requests[0].arrays.get(ARRAYS)
        if len(requests) == 1 or received is None:
            return None
        if any(request.arrays.get(ARRAYS) is not received for request in requests):
            return None
        used = {self.networks.of_client[request.client_id] for request in requests}
        model = self.resident(used.pop())
        return None if used or set(received) != set(model.state_dict()) else model

    def _evaluates_plainly(self) -> bool:
        more = self.scoring.whole_test or self.scoring.score_training_data
        own = evaluates_as_base(self.client_class) and self.evaluates
        return own and not more and not self.data.partition.validation

    def _trains_plainly(self, model: nn.Module) -> bool:
        more = self.scoring.score_trained or self.scoring.score_training_data
        own = trains_as_base(self.client_class) and self.plain
        return own and not more and trains_plainly(model, self.training)
