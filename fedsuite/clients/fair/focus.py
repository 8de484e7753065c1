"""Client of FOCUS: trains all models, and keeps how much of its data each describes."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.client import SHARES, Arrays, Reply, Request, Told, Vector
from fedsuite.clients.personal.several_models import (
    MixtureClient,
    e_step,
    received_models,
)


class FOCUSClient(MixtureClient):
    """Trains each received model on the same mini-batches, and reports its shares."""

    SENDS: ClassVar[frozenset[str]] = MixtureClient.SENDS | {f"{SHARES}/{SHARES}"}
    focus_memory = Told(bool)
    focus_inference = Told(str)

    @override
    def on_train(self, request: Request) -> Reply:
        last_state = self.load_state(request) if self.focus_memory else None
        shares = self.shares_of(received_models(request), last_state)
        trained, summary = self.train_all(request, shares)
        stored = self.save_state(request, {SHARES: shares})
        return Reply(
            {**trained, SHARES: {SHARES: np.exp(shares)}},
            {**self.train_metrics(summary), **stored},
        )

    @override
    def updated_shares(self, models: Mapping[str, Arrays], log_shares: Vector) -> Vector:
        return e_step(log_shares, self.losses_under(models))

    @override
    def served(self, request: Request) -> tuple[list[Arrays], Vector]:
        models, shares = super().served(request)
        if self.focus_inference == "mixture":
            return models, shares
        return [models[int(shares.argmax())]], np.zeros(1)
