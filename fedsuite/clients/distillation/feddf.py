"""Client of FedDF and FedDF-AL: FedAL's, but the model travels in each round."""

from typing import ClassVar

from torch import nn
from typing_extensions import override

from fedsuite.client import ARRAYS, OUTPUTS, Reply, Request, load_arrays, model_arrays
from fedsuite.clients.distillation.fedal import FedALClient


class FedDFClient(FedALClient):
    """Begins a round with the received model and ends it by sending its own.

    Between rounds it keeps its optimiser's memory. The method is not black-box: parameters
    and buffers leave the client. Without FedDF-AL's gradients there is no adversarial term.
    """

    SENDS: ClassVar[frozenset[str]] = FedALClient.SENDS | {ARRAYS}

    @override
    def before_local_phase(self, request: Request) -> None:
        load_arrays(self.model, request.arrays[ARRAYS])
        super().before_local_phase(request)

    @override
    def on_local_phase(self, request: Request) -> Reply:
        return self._completed(super().on_local_phase(request))

    @override
    def on_transfer(self, request: Request) -> Reply:
        return self._completed(super().on_transfer(request))

    @override
    def evaluated(self, request: Request) -> nn.Module:
        load_arrays(self.model, request.arrays[ARRAYS])
        return self.model

    def _completed(self, reply: Reply) -> Reply:
        """Add the model to the last reply of a round, the one without outputs."""
        if OUTPUTS in reply.arrays:
            return reply
        return Reply({ARRAYS: model_arrays(self.model)}, reply.metrics)
