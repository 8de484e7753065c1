"""Client side of filter decomposition: completes the model, and trains personal atoms."""

import math
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from torch import nn

from fedsuite.client import (
    ARRAYS,
    EVALUATE,
    STORED_STATE,
    TRAIN,
    Arrays,
    FederatedClient,
    MetricValue,
    NotFiniteError,
    Reply,
    Request,
    RunError,
    fewest_rows,
    frozen_arrays,
    load_arrays,
    make_optimizer,
    mini_batches,
    model_arrays,
    run_steps,
    torch_stream,
)
from fedsuite.messages.decomposition import SLOW, SLOW_VERSION, Orders
from fedsuite.models.groups import ParameterGroups
from fedsuite.training.scoring import is_score
from fedsuite.training.sent import refuse_undeclared
from fedsuite.training.upload_noise import UploadNoise

_PARTS = ("inner", "slow", "drifted", "personal")


@dataclass
class _Memory:
    """All that a client keeps between exchanges, stored as one version.

    ``inner`` is the state of the client inside; ``slow`` the slow arrays as received, of
    ``slow_version`` (-1 for none); ``drifted`` the client's own slow arrays, trained from
    those; ``personal`` the personal atoms, with a personal head.
    """

    slow_version: int = -1
    inner: Arrays = field(default_factory=dict)
    slow: Arrays = field(default_factory=dict)
    drifted: Arrays = field(default_factory=dict)
    personal: Arrays = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def unpack(cls, arrays: Arrays) -> "_Memory":
        """Read a stored version."""
        memory = cls(int(arrays[SLOW_VERSION]))
        for name, array in arrays.items():
            part, slash, rest = name.partition("/")
            if slash:
                getattr(memory, part)[rest] = array
        return memory

    def pack(self) -> Arrays:
        """Return the arrays to store."""
        packed: Arrays = {SLOW_VERSION: np.array(self.slow_version)}
        for part in _PARTS:
            packed |= {f"{part}/{name}": a for name, a in getattr(self, part).items()}
        return packed


class _Compartment:
    """The store that the client inside sees during one exchange."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory

    def load(self, client_id: int, version: str) -> Arrays:
        """Return what the client inside kept."""
        return self._memory.inner

    def save(self, client_id: int, version: str, arrays: Arrays, needed: set[str]) -> None:
        """Keep something new for it."""
        self._memory.inner = {name: array.copy() for name, array in arrays.items()}
        self._memory.changed = True


class DecomposedClient:
    """A client's wrapper where the strategy has the layer ``FilterDecomposition``.

    The client inside gets and sends whole models, and knows nothing of fast and slow
    arrays. Its state, the slow arrays and the personal atoms are stored as one version.
    Personal atoms start from its model. Privacy acts on what leaves, after the cut.
    """

    SENDS: ClassVar[frozenset[str]] = frozenset(
        {SLOW_VERSION, STORED_STATE, "personal-loss"}
    )
    """What its replies may hold beside what those of the client inside may."""

    def __init__(self, client: FederatedClient, groups: ParameterGroups) -> None:
        self.client = client
        # What leaves is protected after the cut, and not what the client inside answers.
        self._privacy, client.privacy = client.privacy, UploadNoise()
        self._store = client.store
        self._groups = groups
        self._names = list(client.model.state_dict())
        self._initial = model_arrays(client.model, (*groups.atoms, *groups.head))

    def answer(self, request: Request) -> Reply:
        """Answer a request.

        RunError if the server is not that of filter decomposition, or counts on arrays that
        the client does not hold.
        """
        orders, memory = Orders.read(request.config), self._remembered(request)
        if ARRAYS not in request.arrays:
            # A question about the client's data, say: nothing to complete or cut.
            reply = self._protected(request, self._inside(request, memory))
        elif request.message_type == EVALUATE:
            reply = self._evaluate(request, orders, memory)
        else:
            reply = self._work(request, orders, memory)
        metrics = {**reply.metrics, SLOW_VERSION: orders.slow_version}
        if memory.changed and request.new_version:
            version, needed = request.new_version, request.needed_versions
            self._store.save(request.client_id, version, memory.pack(), needed)
            metrics[STORED_STATE] = 1
        reply = replace(reply, metrics=metrics)
        names = self.client.SENDS | self.SENDS
        refuse_undeclared(type(self.client).__name__, reply, names)
        return reply

    def model_for(self, request: Request) -> nn.Module:
        """Return a copy of the model that the client is scored with, ready to predict."""
        orders, memory = Orders.read(request.config), self._remembered(request)
        if orders.keys.personal_atoms:
            personal = self._personal(orders, memory)
            load_arrays(self.client.model, {**request.arrays[ARRAYS], **personal})
            return deepcopy(self.client.model).eval()
        with frozen_arrays(self.client.model, self._frozen(orders)):
            return self.client.model_for(self._for_inside(request, memory))

    def _remembered(self, request: Request) -> _Memory:
        """Return what the client kept, in the version that a message names."""
        if not request.start_version:
            return _Memory()
        stored = self._store.load(request.client_id, request.start_version)
        # Of who goes around this client there may be more than of itself.
        return _Memory.unpack(stored) if stored else _Memory()

    def _frozen(self, orders: Orders) -> Collection[str]:
        """Return what stays as it is where a method tunes a copy before it scores it."""
        return self._groups.atoms if orders.keys.freeze_atoms else ()

    def _work(self, request: Request, orders: Orders, memory: _Memory) -> Reply:
        """Let the client inside train or measure the whole model; cut its reply down."""
        slow = [name for name in self._names if name not in request.arrays[ARRAYS]]
        self._take_slow(request, orders, memory, slow)
        received = {**request.arrays[ARRAYS], **memory.slow}
        model = {**received, **memory.drifted}
        # In the model's order, so that noise falls on the same arrays in each round.
        ordered = {name: model[name] for name in self._names if name in model}
        whole = replace(request, arrays={**request.arrays, ARRAYS: ordered})
        frozen = set(self._groups.atoms) if orders.keys.freeze_atoms else set()
        if orders.keys.local_coefficients == "freeze" and not orders.sync:
            frozen |= set(slow)
        with frozen_arrays(self.client.model, frozen):
            reply = self._inside(whole, memory)
        if request.message_type == TRAIN:
            if orders.keys.local_coefficients == "persist":
                trained = reply.arrays[ARRAYS]
                memory.drifted = {name: trained[name] for name in slow}
                memory.changed |= bool(slow)
            if orders.keys.personal_atoms:
                epochs, start = orders.keys.personal_epochs, self._personal(orders, memory)
                memory.personal, loss = self._trained(
                    request, received, start, epochs, "personal"
                )
                memory.changed = True
                reply = replace(reply, metrics={**reply.metrics, "personal-loss": loss})
        if not orders.sync:
            fast = {
                record: {n: a for n, a in arrays.items() if n not in slow}
                for record, arrays in reply.arrays.items()
            }
            reply = replace(reply, arrays=fast)
        return self._protected(whole, reply)

    def _take_slow(
        self, request: Request, orders: Orders, memory: _Memory, slow: Collection[str]
    ) -> None:
        """Keep the slow arrays that came, or see that the held ones are current."""
        if SLOW in request.arrays:
            memory.slow = dict(request.arrays[SLOW])
            memory.slow_version = orders.slow_version
            memory.drifted = {}
            memory.changed = True
        if not slow:
            return
        if memory.slow_version != orders.slow_version or set(memory.slow) != set(slow):
            raise RunError(
                f"client {request.client_id}: the server counts on version "
                f"{orders.slow_version} of {len(slow)} slow arrays, held is version "
                f"{memory.slow_version} of {len(memory.slow)}: server and client must "
                "build the same model and belong to the same run"
            )

    def _protected(self, request: Request, reply: Reply) -> Reply:
        return self.client.protect(request, reply, self._privacy)

    def _inside(self, request: Request, memory: _Memory) -> Reply:
        """Return the answer of the client inside, before privacy."""
        reply = self.client.answer(self._for_inside(request, memory))
        metrics = {k: v for k, v in reply.metrics.items() if k != STORED_STATE}
        return replace(reply, metrics=metrics)

    def _for_inside(self, request: Request, memory: _Memory) -> Request:
        """Return a message as the client inside gets it, which then has its own state."""
        self.client.store = _Compartment(memory)
        version = request.start_version if memory.inner else ""
        arrays = {name: a for name, a in request.arrays.items() if name != SLOW}
        return replace(request, arrays=arrays, start_version=version)

    def _evaluate(self, request: Request, orders: Orders, memory: _Memory) -> Reply:
        """Score the shared model and, where there is one, the personal model."""
        with frozen_arrays(self.client.model, self._frozen(orders)):
            shared = self._protected(request, self._inside(request, memory))
        if not orders.keys.personal_atoms:
            return shared
        metrics = dict(shared.metrics)
        for name in filter(is_score, shared.metrics):
            metrics[f"global-{name}"] = metrics.pop(name)
        received, personal = request.arrays[ARRAYS], self._personal(orders, memory)
        metrics |= self._scores(received, personal)
        if epochs := orders.keys.refresh_epochs:
            fresh, _ = self._trained(request, received, personal, epochs, "refresh")
            scores = self._scores(received, fresh)
            metrics |= {f"refreshed-{k}": scores[k] for k in filter(is_score, scores)}
        return replace(shared, metrics=metrics)

    def _scores(self, received: Arrays, personal: Arrays) -> dict[str, MetricValue]:
        load_arrays(self.client.model, {**received, **personal})
        return dict(self.client.evaluation().metrics)

    def _personal(self, orders: Orders, memory: _Memory) -> Arrays:
        """Return the personal arrays; the initial ones before the first training."""
        head = self._groups.head if orders.keys.personal_head == "local" else ()
        names = (*self._groups.atoms, *head)
        return {name: memory.personal.get(name, self._initial[name]) for name in names}

    def _trained(
        self, request: Request, received: Arrays, start: Arrays, epochs: int, purpose: str
    ) -> tuple[Arrays, float]:
        """Return personal arrays after training with all else frozen, and their loss.

        Streams and optimiser are its own: the shared model does not depend on it.
        """
        client, server_round = self.client, request.server_round
        options = client.training
        if epochs:
            options = replace(options, local_epochs=epochs, local_steps=0)
        keys = (client.seed, f"{purpose}-batches", server_round, client.client_id)
        model, data = client.model, client.train_data
        fewest = fewest_rows(model, data, len(data), options)
        batches = mini_batches(len(data), options, torch_stream(*keys), fewest)
        load_arrays(model, {**received, **start})
        with (
            frozen_arrays(model, set(self._names) - set(start)),
            client.layer_stream(purpose, server_round),
        ):
            optimizer = make_optimizer(model, options, server_round)
            summary = run_steps(
                model,
                data,
                batches,
                optimizer,
                client.training_loss(options, purpose, server_round),
                clip_gradient_norm=options.clip_gradient_norm,
            )
        if not math.isfinite(summary.loss):
            raise NotFiniteError(
                f"client {client.client_id}, round {server_round}: the personal model's "
                f"loss is {summary.loss}: lower learning-rate, or look at its data"
            )
        return model_arrays(model, start), summary.loss
