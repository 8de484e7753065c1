"""Small runs on digits in which one or two of five clients lie, as their folders tell."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.clientapp import ClientApp

from fedsuite.callbacks.recorder import Recorder
from fedsuite.core.errors import FedsuiteError
from fedsuite.core.rng import numpy_stream
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import ARRAYS, TRAIN, Arrays
from fedsuite.results.reader import load_run
from fedsuite.results.suspects import Suspect, suspects
from fedsuite.results.writer import RunFolder
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import initial_arrays, server_parts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.training.store import MemoryStore
from tests.helpers import digits_experiment, run

FACTORS = {"x -20": -20.0, "x 3": 3.0, "sign flip": -1.0, "NaN": np.nan}
FORMS = (*FACTORS, "absent", "loss 9")
PARTS: tuple[dict[str, Any], ...] = (
    {"partitioner": "iid"},
    {"partitioner": "dirichlet", "dirichlet_alpha": 0.5},
    {"partitioner": "power-law"},
)


class LyingGrid(LocalGrid):
    """A local grid some of whose clients say something else than they trained."""

    def __init__(self, app: ClientApp, form: str, liars: frozenset[int]) -> None:
        super().__init__(app, 5)
        self._form = form
        self._liars = liars

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        sent = list(messages)
        replies = super().send_and_receive(sent, timeout=timeout)
        if not sent or sent[0].metadata.message_type.partition(".")[0] != TRAIN:
            return replies
        model = to_arrays(sent[0].content.array_records[ARRAYS])
        return (lied for reply in replies for lied in self._lied(reply, model))

    def _lied(self, reply: Message, model: Arrays) -> Iterator[Message]:
        content = reply.content
        for name, record in list(content.items()):
            client, _, what = name.partition(".")
            if int(client.removeprefix("client-")) not in self._liars:
                continue
            if self._form == "absent":
                return
            factor = FACTORS.get(self._form)
            if factor is not None and isinstance(record, ArrayRecord) and what == ARRAYS:
                told = {
                    k: (model[k] + factor * (a - model[k])).astype(a.dtype)
                    for k, a in to_arrays(record).items()
                }
                content[name] = to_record(told)
            if self._form == "loss 9" and isinstance(record, MetricRecord):
                for metric in {"loss", "loss-before"} & set(record):
                    record[metric] = 9.0
        yield reply


def ranked(path: Path, form: str, seed: int, **keys: Any) -> tuple[list[Suspect], set[int]]:
    """Return the suspects of a run of five rounds, and who lied; by the seed one or two.

    A form that is none of :data:`FORMS` has no liar.
    """
    keys = {"num_clients": 5, "num_rounds": 5, "evaluate_every": 5, "seed": seed, **keys}
    experiment = digits_experiment(**PARTS[seed % len(PARTS)], **keys)
    order = numpy_stream(seed, "liars").permutation(5)
    liars = frozenset(order[: 1 + seed // 3 % 2].tolist() if form in FORMS else ())
    data = federated_data(experiment)
    model = network_model(experiment, data)
    parts = server_parts(experiment, data, model)
    app = client_app_for(Worker(experiment, MemoryStore()))
    folder = RunFolder.create(path, experiment.values, {"seed": seed})
    initial = to_record(initial_arrays(experiment, model, parts))
    with suppress(FedsuiteError):  # a run that the liars end is looked at too
        grid = LyingGrid(app, form, liars)
        run(build_strategy(experiment, parts), grid, 5, initial, [Recorder(folder)])
    folder.finish("finished")
    return suspects(load_run(path)), set(liars)
