"""Client of FedMD and FedMD-LF: imitates the mean of the clients' outputs."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import LOGITS, MEAN_OUTPUTS, Request, RunError, Told
from fedsuite.clients.distillation.public_exchange import PublicExchangeClient
from fedsuite.models.distillation import kl_divergence, leave_one_out

REFERENCE = "reference"


class FedMDClient(PublicExchangeClient):
    """Learns from the others' mean logits, with less-forgetting where asked for."""

    distillation_temperature = Told(float)
    distillation_target = Told(str)
    distillation_loss = Told(str)
    less_forgetting = Told(str)
    less_forgetting_from = Told(int)
    _reference: nn.Module | None = None
    _steps_taken = 0

    @override
    def before_local_phase(self, request: Request) -> None:
        self._reference, self._steps_taken = None, 0
        if self._less_forgetting(request, "local"):
            self._reference = copy.deepcopy(self.model).requires_grad_(False).train()

    def after_local_phase(self, request: Request) -> None:
        """Remember the outputs on the public batches that transfer stays near to.

        The first batch is left out: model and reference are the same there.
        """
        self._reference = None
        self.memory.pop(REFERENCE, None)
        later = range(1, self.transfer_steps)
        if later and self._less_forgetting(request, "transfer"):
            kept = [self.outputs_without_trace(request, step)[LOGITS] for step in later]
            self.memory[REFERENCE] = np.stack([logits.cpu().numpy() for logits in kept])

    @override
    def after_step(self, model: nn.Module, step: int) -> None:
        self._steps_taken = step

    @override
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        if self._reference is None or not self._steps_taken:
            return super().loss(model, features, labels)
        logits = model(features)
        with torch.no_grad():
            kept = self._reference(features)
        loss = self.loss_of_logits(logits, labels)
        return loss + kl_divergence(logits, kept, self.distillation_temperature)

    @override
    def transfer_loss(
        self, request: Request, step: int, outputs: Mapping[str, Tensor]
    ) -> Tensor | None:
        terms = self.transfer_terms(request, step, outputs[LOGITS])
        return torch.stack(terms).sum() if terms else None

    def transfer_terms(self, request: Request, step: int, logits: Tensor) -> list[Tensor]:
        """Return the terms of the transfer loss."""
        terms = []
        target = self._target(request, logits.detach())
        if target is not None:
            terms.append(self._match(logits, target))
        if step and self._less_forgetting(request, "transfer"):
            kept = torch.tensor(self._kept(step), device=logits.device)
            terms.append(kl_divergence(logits, kept, self.distillation_temperature))
        return terms

    def _target(self, request: Request, logits: Tensor) -> Tensor | None:
        """Return the logits to imitate; None without other clients."""
        if self.num_responders < 2:
            return None
        mean = self.received(request, MEAN_OUTPUTS)
        if self.distillation_target == "all":
            return mean
        return leave_one_out(mean, logits, self.num_responders)

    def _match(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.distillation_loss == "l1":
            return functional.l1_loss(logits, target)
        if self.distillation_loss == "mse":
            return functional.mse_loss(logits, target)
        return kl_divergence(logits, target, self.distillation_temperature)

    def _kept(self, step: int) -> Any:
        if REFERENCE not in self.memory or step > len(self.memory[REFERENCE]):
            raise RunError(
                f"client {self.client_id}: no reference for step {step} of the transfer: "
                "the local phase of this round did not end here"
            )
        return self.memory[REFERENCE][step - 1]

    def _less_forgetting(self, request: Request, phase: str) -> bool:
        if request.server_round < self.less_forgetting_from:
            return False
        return self.less_forgetting in ("both", phase)
