"""Client of FedDyn: steps on the dynamically regularised loss."""

from typing_extensions import override

from fedsuite.client import ARRAYS, Reply, Request, Told
from fedsuite.clients.drift.corrected import (
    CorrectedClient,
    model_change,
    moved_by,
    vector_of,
    with_vector,
)

LAMBDA = "lambda"


class FedDynClient(CorrectedClient):
    """Adds alpha (w - w_t) - lambda_k to each gradient and keeps lambda_k."""

    feddyn_alpha = Told(float)

    @override
    def on_train(self, request: Request) -> Reply:
        alpha = self.feddyn_alpha / self.size_factor(request)
        received = request.arrays[ARRAYS]
        state = self.load_state(request) or {}
        own = vector_of(state, LAMBDA, received, self.trainable(received))
        offsets = {name: -array for name, array in own.items()}
        trained, summary = self.train_corrected(request, offsets, alpha)
        moved = model_change(received, trained, own)
        renewed = moved_by(own, {name: -alpha * change for name, change in moved.items()})
        stored = self.save_state(request, with_vector(state, LAMBDA, renewed))
        return Reply({ARRAYS: trained}, {**self.train_metrics(summary), **stored})
