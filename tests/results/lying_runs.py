"""Small runs on digits in which one or two of five clients lie, as their folders tell.

The clients are of an app of somebody else's, whose model is a softmax regression in NumPy.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedsuite.callbacks.recorder import Recorder
from fedsuite.core.errors import FedsuiteError
from fedsuite.core.rng import numpy_stream
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import Arrays
from fedsuite.results.reader import load_run
from fedsuite.results.suspects import Suspect, suspects
from fedsuite.results.writer import RunFolder
from fedsuite.strategies import TERM, FedAvg
from fedsuite.workarounds.identity import flower_identity

FACTORS = {"x -20": -20.0, "x 3": 3.0, "sign flip": -1.0, "NaN": np.nan}
FORMS = (*FACTORS, "absent", "loss 9")
CLIENTS, ROUNDS, CLASSES = 5, 5, 10

Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


@cache
def digits() -> Rows:
    features, labels = load_digits(return_X_y=True)
    return features / 16, labels


def divided(seed: int) -> list[Rows]:
    """Return the clients' rows: by chance, with unlike classes, or of unlike sizes."""
    features, labels = digits()
    stream = numpy_stream(seed, "divided")
    shares = np.full((CLASSES, CLIENTS), 1 / CLIENTS)
    if seed % 3 == 1:
        shares = stream.dirichlet(np.full(CLIENTS, 0.5), CLASSES)
    if seed % 3 == 2:
        shares[:] = np.arange(1, CLIENTS + 1) ** -1.2
        shares /= shares.sum(axis=1, keepdims=True)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(CLIENTS)]
    for label in range(CLASSES):
        rows = stream.permutation(np.flatnonzero(labels == label))
        ends = (np.cumsum(shares[label])[:-1] * len(rows)).astype(int)
        for part, own in zip(parts, np.split(rows, ends), strict=True):
            part.append(own)
    indices = (np.concatenate(part) for part in parts)
    return [(features[rows], labels[rows]) for rows in indices]


def probabilities(model: Arrays, features: NDArray[np.float64]) -> NDArray[np.float64]:
    logits = features @ model["weight"] + model["bias"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def loss(model: Arrays, rows: Rows) -> float:
    right = probabilities(model, rows[0])[np.arange(len(rows[1])), rows[1]]
    return float(-np.log(np.maximum(right, 1e-12)).mean())


def trained(model: Arrays, rows: Rows, stream: np.random.Generator) -> Arrays:
    """Return the model after an epoch of mini-batches of 32 rows."""
    model = {name: array.astype(np.float64) for name, array in model.items()}
    order = stream.permutation(len(rows[1]))
    for start in range(0, len(order), 32):
        batch = order[start : start + 32]
        features, labels = rows[0][batch], rows[1][batch]
        errors = probabilities(model, features)
        errors[np.arange(len(batch)), labels] -= 1
        model["weight"] -= 0.1 * features.T @ errors / len(batch)
        model["bias"] -= 0.1 * errors.mean(axis=0)
    return {name: array.astype(np.float32) for name, array in model.items()}


def lying_app(form: str, seed: int, liars: frozenset[int]) -> ClientApp:
    """Return the app, whose clients are numbered from 0."""
    app, parts = ClientApp(), divided(seed)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        server_round = int(message.content["config"]["server-round"])
        sent = {k: a.numpy() for k, a in message.content["arrays"].items()}
        if not all(np.isfinite(array).all() for array in sent.values()):
            raise FloatingPointError("the model holds no numbers")
        model = trained(sent, parts[number], numpy_stream(seed, "b", server_round, number))
        losses = {"loss-before": loss(sent, parts[number])}
        losses["loss"] = loss(model, parts[number])
        if number in liars:
            factor = FACTORS.get(form, 1.0)
            model = {
                k: (sent[k] + factor * (a - sent[k])).astype(np.float32)
                for k, a in model.items()
            }
            if form == "loss 9":
                losses = dict.fromkeys(losses, 9.0)
        metrics = {"num-examples": len(parts[number][1]), **losses}
        content = RecordDict(
            {
                "arrays": ArrayRecord({k: Array(a) for k, a in model.items()}),
                "metrics": MetricRecord(metrics),
            }
        )
        return Message(content, reply_to=message)

    return app


class LossyGrid(LocalGrid):
    """A local grid that loses some clients' replies."""

    def __init__(self, app: ClientApp, lost: frozenset[int]) -> None:
        super().__init__(app, CLIENTS)
        self._lost = {self.get_node_ids()[number] for number in lost}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Any:
        sent = [m for m in messages if m.metadata.dst_node_id not in self._lost]
        return super().send_and_receive(sent, timeout=timeout)


def ranked(
    path: Path, form: str, seed: int, method: str = "fedavg"
) -> tuple[list[Suspect], set[int]]:
    """Return the suspects of a run of five rounds, and who lied; by the seed one or two.

    A form that is none of :data:`FORMS` has no liar.
    """
    order = numpy_stream(seed, "liars").permutation(CLIENTS)
    liars = frozenset(order[: 1 + seed // 3 % 2].tolist() if form in FORMS else ())
    strategy = {"fedavg": FedAvg, "term": TERM}[method](
        fraction_evaluate=0.0, min_available_nodes=CLIENTS
    )
    folder = RunFolder.create(path, {"method": method, "num-clients": CLIENTS}, {})
    initial = {"weight": np.zeros((64, CLASSES)), "bias": np.zeros(CLASSES)}
    arrays = to_record({k: a.astype(np.float32) for k, a in initial.items()})
    grid = LossyGrid(
        lying_app(form, seed, liars), liars if form == "absent" else frozenset()
    )
    nodes = grid.get_node_ids()
    # A run that the liars end is looked at too.
    with suppress(FedsuiteError), flower_identity():
        strategy.start(grid, arrays, ROUNDS, callbacks=[Recorder(folder)])
    folder.finish("finished")
    return suspects(load_run(path)), {nodes[number] for number in liars}
