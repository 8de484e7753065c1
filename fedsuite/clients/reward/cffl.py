"""Client of CFFL: keeps its model, uploads the largest part of each update."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    STATISTICS,
    UPDATE,
    USUAL,
    Arrays,
    FederatedClient,
    Reply,
    Request,
    RunError,
    Told,
    Vector,
    largest,
    load_arrays,
    model_arrays,
    pack,
    unpack,
)


class CFFLClient(FederatedClient):
    """Goes on from its own model, and from the reward that the server sends for it.

    The first message holds the model to start from; later ones may hold the reward.
    ``update-names`` are the arrays of the vector of parameters, ``upload-count`` is the
    number of its update's entries to send, and ``clip`` their largest size; 0 does not
    clip.
    """

    SENDS: ClassVar[frozenset[str]] = USUAL | {
        f"{UPDATE}/kept",
        f"{UPDATE}/values",
        STATISTICS,
    }
    KEEPS_STATE = True
    clip = Told(float)
    upload_count = Told(int)

    @override
    def on_train(self, request: Request) -> Reply:
        names = _names(request)
        self._load_own(request, names)
        start = model_arrays(self.model)
        metrics = self.train_metrics(self.train_locally(request))
        trained = model_arrays(self.model)
        update = _flat(trained, names) - _flat(start, names)
        if self.clip > 0:
            update = np.clip(update, -self.clip, self.clip)
        own = _stepped(start, names, update)
        statistics = {name: a for name, a in trained.items() if name not in set(names)}
        stored = self.save_state(request, {**own, **statistics})
        bits, values = pack(update, largest(update, self.upload_count))
        dtype = np.result_type(*(start[name] for name in names))
        upload: Arrays = {"kept": bits, "values": values.astype(dtype)}
        records = {UPDATE: upload} | ({STATISTICS: statistics} if statistics else {})
        return Reply(records, {**metrics, **stored})

    @override
    def evaluated(self, request: Request) -> nn.Module:
        self._load_own(request, _names(request))
        return self.model

    def _load_own(self, request: Request, names: Sequence[str]) -> None:
        """Load the model to start from, with the reward for it."""
        own = self.load_state(request)
        if own is None:
            if ARRAYS not in request.arrays:
                raise RunError(
                    f"client {self.client_id}: the message holds no model to start from, "
                    "and the client keeps none: use the strategy CFFL"
                )
            own = dict(request.arrays[ARRAYS])
        reward = request.arrays.get(UPDATE)
        if reward is not None:
            size = sum(own[name].size for name in names)
            own = _stepped(own, names, unpack(reward["kept"], reward["values"], size))
        load_arrays(self.model, {**own, **request.arrays.get(STATISTICS, {})})


def _names(request: Request) -> list[str]:
    names = request.config.get("update-names")
    if not isinstance(names, list) or not names:
        raise RunError(
            f"client {request.client_id}: the message does not say which arrays are "
            "trained: use the strategy CFFL"
        )
    return [str(name) for name in names]


def _flat(arrays: Arrays, names: Sequence[str]) -> Vector:
    parts = [arrays[name].reshape(-1).astype(np.float64) for name in names]
    return np.concatenate(parts)


def _stepped(arrays: Arrays, names: Sequence[str], step: NDArray[Any]) -> Arrays:
    """Return arrays after a step of those that are named."""
    new = dict(arrays)
    start = 0
    for name in names:
        array = arrays[name]
        part = step[start : start + array.size].reshape(array.shape)
        new[name] = (array + part).astype(array.dtype)
        start += array.size
    return new
