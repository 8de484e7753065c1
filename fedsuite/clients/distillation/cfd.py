"""Client of CFD: imitates the server's network on public data."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import LOGITS, OUTPUTS, PROBABILITIES, SERVER_OUTPUTS, Request, Told
from fedsuite.clients.distillation.public_exchange import PublicExchangeClient
from fedsuite.messages.quantisation import quantise
from fedsuite.models.distillation import kl_divergence


class CFDClient(PublicExchangeClient):
    """Sends logits, or probabilities on a grid, and learns from the server's network."""

    SENDS: ClassVar[frozenset[str]] = PublicExchangeClient.SENDS | {
        f"{OUTPUTS}/{PROBABILITIES}"
    }
    cfd_bits = Told(int)

    @override
    def transfer_loss(
        self, request: Request, step: int, outputs: Mapping[str, Tensor]
    ) -> Tensor:
        return kl_divergence(outputs[LOGITS], self.received(request, SERVER_OUTPUTS))

    @override
    def outputs_without_trace(self, request: Request, step: int) -> dict[str, Tensor]:
        outputs = super().outputs_without_trace(request, step)
        if not self.cfd_bits:
            return outputs
        predicted = functional.softmax(outputs[LOGITS].double(), dim=1)
        codes = quantise(predicted.cpu().numpy(), self.cfd_bits)
        return {PROBABILITIES: torch.from_numpy(codes).float()}
