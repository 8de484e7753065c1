"""A client whose changes of the model are made small before they leave it.

It completes the model from the step that it was sent, and keeps in its state what it must
know in the next round: the model that it was given, and what its own change lost.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedsuite.core.errors import NotFiniteError, RunError
from fedsuite.messages.compression import (
    FROM,
    STEP,
    VERSION,
    Codec,
    HalfModel,
    changed,
    coded_names,
    moved,
    not_across,
    packed,
    unpacked,
)
from fedsuite.messages.records import (
    ARRAYS,
    STORED_STATE,
    TRAIN,
    Arrays,
    Reply,
    Request,
    grouped,
    joined,
)
from fedsuite.messages.statistics import buffers_declared
from fedsuite.training.app import Answering
from fedsuite.training.store import ClientStore

_INNER, _MODEL, _LOST = "inner", "model", "lost"


class Compartment:
    """The store that a client inside sees: one part of each version of the state."""

    def __init__(self, store: ClientStore) -> None:
        self._store = store
        self._saved: Arrays | None = None

    def parts(self, request: Request) -> dict[str, Arrays]:
        """Return all parts of the version that a message names; none of no version."""
        self._saved = None
        if not request.start_version:
            return {}
        return grouped(self._store.load(request.client_id, request.start_version))

    def load(self, client_id: int, version: str) -> Arrays:
        """Return what the client inside kept."""
        return grouped(self._store.load(client_id, version)).get(_INNER, {})

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        """Keep something new for it, until all parts are stored."""
        self._saved = {name: array.copy() for name, array in arrays.items()}

    def store(self, request: Request, parts: dict[str, Arrays]) -> bool:
        """Store a version of all parts if the message names one; return whether it did."""
        if self._saved is not None:
            parts = {**parts, _INNER: self._saved}
        if request.new_version:
            version, needed = request.new_version, request.needed_versions
            self._store.save(request.client_id, version, joined(parts), needed)
        return bool(request.new_version)

    @property
    def is_changed(self) -> bool:
        """Whether the client inside has something new."""
        return self._saved is not None


class CompressedClient:
    """A client, or a wrapper of one, whose model travels as a coded change.

    Parameters
    ----------
    client
        What trains and is scored; its store is the compartment.
    compartment
        Where its state and this wrapper's lie.
    up, down
        How changes are coded.
    names, buffers
        Names of the model's arrays in order, and of its buffers, which travel as they are.
    """

    def __init__(
        self,
        client: Answering,
        compartment: Compartment,
        up: Codec,
        down: Codec,
        names: Sequence[str],
        buffers: frozenset[str],
    ) -> None:
        self._client = client
        self._compartment = compartment
        self._up, self._down = up, down
        self._names, self._buffers = names, buffers

    def answer(self, request: Request) -> Reply:
        """Answer a request.

        Raises
        ------
        RunError
            If the server counts on a model that the client does not have.
        """
        parts = self._compartment.parts(request)
        whole = self._completed(request, parts)
        start = request.start_version if _INNER in parts else ""
        reply = self._client.answer(replace(whole, start_version=start))
        keeps = self._compartment.is_changed
        if request.message_type == TRAIN and ARRAYS in whole.arrays:
            if self._up.is_on and ARRAYS in reply.arrays:
                reply = self._coded(whole, reply, parts)
                keeps |= self._up.feeds_back
            if self._down.is_on:
                version = int(request.number(VERSION))
                model = {**whole.arrays[ARRAYS], VERSION: np.array(version)}
                parts, keeps = {**parts, _MODEL: model}, True
        metrics = {n: v for n, v in reply.metrics.items() if n != STORED_STATE}
        if keeps and self._compartment.store(request, parts):
            metrics[STORED_STATE] = 1
        return replace(reply, metrics=metrics)

    def _completed(self, request: Request, parts: dict[str, Arrays]) -> Request:
        """Return a message with the whole model where it holds a step to it."""
        if STEP not in request.arrays:
            return request
        step, held = dict(request.arrays[STEP]), dict(parts.get(_MODEL, {}))
        start, version = int(step.pop(FROM)), int(held.pop(VERSION, -1))
        if start != version:
            raise RunError(
                f"client {request.client_id}: the server counts on version {start} of the "
                f"model, held is {version}: keep state-dir between rounds"
            )
        if step:
            coded, rest = unpacked(step)
            shapes = {n: a.shape for n, a in held.items() if n not in rest}
            change = self._down.decode(coded, shapes, start + 1, 0)
            held = {**moved(held, change), **rest}
        # A file of a state has another order than the model.
        held = {name: held[name] for name in self._names if name in held}
        arrays = {name: a for name, a in request.arrays.items() if name != STEP}
        return replace(request, arrays={**arrays, ARRAYS: held})

    def _coded(self, whole: Request, reply: Reply, parts: dict[str, Arrays]) -> Reply:
        """Return the reply with a coded change; what is lost goes into the parts."""
        trained, received = reply.arrays[ARRAYS], whole.arrays[ARRAYS]
        with buffers_declared(self._buffers):
            names = coded_names(trained, received)
        change = changed(trained, received, names, parts.get(_LOST, {}))
        for name, array in change.items():
            if not np.isfinite(array).all():
                raise NotFiniteError(f"what was trained of {name} holds NaN or infinity")
        coded = self._up.encode(change, whole.server_round, whole.client_id)
        if self._up.feeds_back:
            shapes = {name: array.shape for name, array in change.items()}
            decoded = self._up.decode(coded, shapes, whole.server_round, whole.client_id)
            parts[_LOST] = {**parts.get(_LOST, {}), **not_across(change, decoded)}
        rest = {name: a for name, a in trained.items() if name not in change}
        return replace(reply, arrays={**reply.arrays, ARRAYS: packed(coded, rest)})


class HalfClient:
    """A client, or a wrapper of one, of a network with bfloat16 arrays.

    Parameters
    ----------
    client
        What trains and is scored.
    halves
        Names of these arrays, which travel as they are.
    """

    def __init__(self, client: Answering, halves: frozenset[str]) -> None:
        self._client = client
        self._coding = HalfModel(halves)

    def answer(self, request: Request) -> Reply:
        """Answer a request."""
        if ARRAYS in request.arrays:
            model = self._coding.decoded(request.arrays[ARRAYS])
            request = replace(request, arrays={**request.arrays, ARRAYS: model})
        reply = self._client.answer(request)
        if ARRAYS in reply.arrays:
            coded = self._coding.coded(reply.arrays[ARRAYS])
            reply = replace(reply, arrays={**reply.arrays, ARRAYS: coded})
        return reply
