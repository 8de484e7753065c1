"""Client of MOON: draws its features to the received model's, away from its last ones."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    FederatedClient,
    Reply,
    Request,
    Told,
    load_arrays,
    model_arrays,
)
from fedsuite.models.features import with_features


def contrastive_loss(
    own: Tensor, shared: Tensor, previous: Tensor, temperature: float
) -> Tensor:
    """Return the batch mean of -log(e^(s/T) / (e^(s/T) + e^(p/T))).

    s and p are the cosines of a row's own features ``[rows, width]`` with the received
    model's and with those of the client's previous one. log 2 where the two are one.
    """
    near = functional.cosine_similarity(own, shared, dim=1)
    far = functional.cosine_similarity(own, previous, dim=1)
    return functional.softplus((far - near) / temperature).mean()


class MOONClient(FederatedClient):
    """Adds the contrast of features to the loss, and keeps its model for the next time."""

    KEEPS_STATE = True
    moon_weight = Told(float)
    moon_temperature = Told(float)
    _anchors: tuple[nn.Module, nn.Module] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._initial = model_arrays(self.model)

    @override
    def on_train(self, request: Request) -> Reply:
        received = request.arrays[ARRAYS]
        previous = self.load_state(request) or {n: self._initial[n] for n in received}
        load_arrays(self.model, received)
        # Where both are one, the term has no gradient.
        differ = any(not np.array_equal(previous.get(n, a), a) for n, a in received.items())
        if self.moon_weight and differ:
            self._anchors = (self._still(), self._still())
            load_arrays(self._anchors[1], {**received, **previous})
        try:
            reply = super().on_train(request)
        finally:
            self._anchors = None
        stored = self.save_state(request, model_arrays(self.model, received))
        return Reply(reply.arrays, {**reply.metrics, **stored})

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._anchors is None:
            return super().loss(model, features, labels)
        own, logits = with_features(model, features)
        with torch.no_grad():
            shared, previous = (with_features(a, features)[0] for a in self._anchors)
        term = contrastive_loss(own, shared, previous, self.moon_temperature)
        return self.loss_of_logits(logits, labels) + self.moon_weight * term

    def _still(self) -> nn.Module:
        """Return a copy of the model in evaluation mode, without gradients."""
        return copy.deepcopy(self.model).eval().requires_grad_(False)
