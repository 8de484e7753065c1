"""Client of FedAL: FedMD-LF's, with a step against the server's discriminator."""

from torch import Tensor

from fedsuite.client import ADVERSARIAL_GRADIENT, Request
from fedsuite.clients.distillation.fedmd import FedMDClient


class FedALClient(FedMDClient):
    """Finishes the chain rule of the discriminator's gradient through its own network."""

    def transfer_terms(self, request: Request, step: int, logits: Tensor) -> list[Tensor]:
        """Return FedMD-LF's terms and the adversarial one, whose value means nothing.

        Its gradient does: the batch mean of G(x) df(x)/dtheta, with the received G fixed.
        """
        terms = super().transfer_terms(request, step, logits)
        if ADVERSARIAL_GRADIENT in request.arrays:
            gradient = self.received(request, ADVERSARIAL_GRADIENT)
            terms.append((gradient * logits).sum() / len(logits))
        return terms
