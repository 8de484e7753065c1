"""Client of SCAFFOLD: steps corrected by control variates."""

from typing import ClassVar

from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    CONTROL,
    CONTROL_CHANGE,
    Arrays,
    Reply,
    Request,
    Told,
    load_arrays,
    model_arrays,
    probe_model,
)
from fedsuite.clients.drift.corrected import (
    CorrectedClient,
    change_record,
    moved_by,
    vector_of,
    with_vector,
)


class ScaffoldClient(CorrectedClient):
    """Adds c - c_k to each gradient and keeps c_k; the record ``control`` holds c."""

    SENDS: ClassVar[frozenset[str]] = CorrectedClient.SENDS | {CONTROL_CHANGE}
    scaffold_option = Told(str)

    @override
    def on_train(self, request: Request) -> Reply:
        control = self.record(request, CONTROL)
        received = request.arrays[ARRAYS]
        state = self.load_state(request) or {}
        names = self.trainable(name for name in control if name in received)
        own = vector_of(state, CONTROL, control, names)
        full = self._full_gradient(request, names)
        offsets = {name: control[name] - own[name] for name in names}
        trained, summary = self.train_corrected(request, offsets)
        new = full or self.new_control(request, own, control, trained, summary)
        change = change_record(own, new, control)
        stored = with_vector(state, CONTROL, moved_by(own, change))
        metrics = {**self.train_metrics(summary), **self.save_state(request, stored)}
        return Reply({ARRAYS: trained, CONTROL_CHANGE: change}, metrics)

    def _full_gradient(self, request: Request, names: list[str]) -> Arrays:
        """Return the gradient of the received model for option I, nothing for option II."""
        if self.scaffold_option != "gradient" or not len(self.train_data):
            return {}
        load_arrays(self.model, request.arrays[ARRAYS])
        with self.layer_stream("probe", request.server_round):
            _, gradient = probe_model(self.model, self.train_data, self.known_loss())
        weights = model_arrays(self.model, names)
        decay = self.training.weight_decay
        return {name: gradient[name] + decay * weights[name] for name in names}
