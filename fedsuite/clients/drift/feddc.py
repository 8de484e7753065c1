"""Client of FedDC: steps corrected by its drift, and by control variates."""

from typing import ClassVar

from typing_extensions import override

from fedsuite.client import ARRAYS, CONTROL, CONTROL_CHANGE, DRIFT, Reply, Request, Told
from fedsuite.clients.drift.corrected import (
    CorrectedClient,
    change_record,
    model_change,
    moved_by,
    vector_of,
    with_vector,
)


class FedDCClient(CorrectedClient):
    """Adds alpha (w - w_t + h_k) + g - g_k to each gradient; keeps h_k and g_k.

    The record ``control`` holds g; without it there are no terms in g.
    """

    SENDS: ClassVar[frozenset[str]] = CorrectedClient.SENDS | {CONTROL_CHANGE}
    feddc_alpha = Told(float)

    @override
    def on_train(self, request: Request) -> Reply:
        factor = self.size_factor(request)
        alpha = self.feddc_alpha / factor
        received = request.arrays[ARRAYS]
        state = self.load_state(request) or {}
        names = self.trainable(received)
        drift = vector_of(state, DRIFT, received, names)
        sent = request.arrays.get(CONTROL, {})
        control = {name: sent[name] / factor for name in names if name in sent}
        own = vector_of(state, CONTROL, received, control)
        offsets = {name: alpha * array for name, array in drift.items()}
        offsets |= {name: offsets[name] + control[name] - own[name] for name in control}
        trained, summary = self.train_corrected(request, offsets, alpha)
        moved = model_change(received, trained, names)
        new = self.new_control(request, own, control, trained, summary)
        change = change_record(own, new, sent)
        state = with_vector(state, DRIFT, moved_by(drift, moved))
        if control:
            state = with_vector(state, CONTROL, moved_by(own, change))
        metrics = {**self.train_metrics(summary), **self.save_state(request, state)}
        extra = {CONTROL_CHANGE: change} if sent else {}
        return Reply({ARRAYS: trained, **extra}, metrics)
