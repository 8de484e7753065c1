"""The client that all methods stand on: a Flower NumPyClient and more.

A method overrides one of the hooks (:meth:`FederatedClient.loss`,
:meth:`FederatedClient.before_step`, ...) or a whole action
(:meth:`FederatedClient.on_train`). The same object answers ``fit``/``evaluate`` of Flower's
NumPyClient and the messages of the Message API, through :mod:`fedsuite.clients.app`.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsuite.clients.store import ClientStore, MemoryStore
from fedsuite.clients.training import (
    TrainingOptions,
    TrainingSummary,
    cross_entropy,
    evaluate_model,
    make_optimizer,
    mini_batches,
    run_steps,
)
from fedsuite.data import Split
from fedsuite.errors import RunError
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.records import (
    ARRAYS,
    EVALUATE,
    NUM_EXAMPLES,
    NUM_STEPS,
    TRAIN,
    Arrays,
    ConfigValue,
    MetricValue,
    Reply,
    Request,
)
from fedsuite.rng import stream_seed, torch_stream

STORED_STATE = "stored-state"


class FederatedClient(NumPyClient):
    """Base of all clients.

    Parameters
    ----------
    model
        Network to train. Clients of one process may share it: each request loads what
        it needs first.
    train, test
        The client's data, on the model's device.
    training
        How to train.
    client_id, seed
        Name the client's random streams.
    store
        Keeps what must survive between rounds.
    """

    ACTIONS: ClassVar[Mapping[str, str]] = {TRAIN: "on_train", EVALUATE: "on_evaluate"}
    """Message type to the name of the method that answers it."""

    def __init__(
        self,
        model: nn.Module,
        train: Split,
        test: Split,
        *,
        training: TrainingOptions | None = None,
        client_id: int = 0,
        seed: int = 0,
        store: ClientStore | None = None,
    ) -> None:
        self.model = model
        self.train_data = train
        self.test_data = test
        self.training = training or TrainingOptions()
        self.client_id = client_id
        self.seed = seed
        self.store = store if store is not None else MemoryStore()
        self._names = list(model.state_dict())

    # --------------------------------------------------------------------------- actions

    def on_train(self, request: Request) -> Reply:
        """Train the received model on the client's data and send it back."""
        load_arrays(self.model, request.arrays[ARRAYS])
        summary = self.train_locally(request)
        return Reply({ARRAYS: model_arrays(self.model)}, self.train_metrics(summary))

    def on_evaluate(self, request: Request) -> Reply:
        """Evaluate the received model on the client's test data."""
        load_arrays(self.model, request.arrays[ARRAYS])
        return self.evaluation(self.test_data)

    # ----------------------------------------------------------------------------- hooks

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch; cross-entropy unless overridden."""
        return cross_entropy(model, features, labels)

    def before_step(self, model: nn.Module) -> None:
        """Correct the gradients in place, between backward pass and step."""

    def after_step(self, model: nn.Module, step: int) -> None:
        """Do something after an optimiser step; ``step`` counts from 1."""

    # ----------------------------------------------------------------- for methods to use

    def train_locally(self, request: Request, purpose: str = "batches") -> TrainingSummary:
        """Train ``self.model`` as the options say.

        Parameters
        ----------
        request
            Names the round, for learning rate and random streams.
        purpose
            Name of the stream of mini-batches; methods with several trainings in a round
            give each its own.

        Raises
        ------
        RunError
            If the loss is not finite.
        """
        server_round = request.server_round
        keys = (self.seed, purpose, server_round, self.client_id)
        batches = mini_batches(len(self.train_data), self.training, torch_stream(*keys))
        optimizer = make_optimizer(self.model, self.training, server_round)
        with self.layer_stream(purpose, server_round):
            summary = run_steps(
                self.model,
                self.train_data,
                batches,
                optimizer,
                self.loss,
                self.before_step if overrides(self, "before_step") else None,
                self.after_step if overrides(self, "after_step") else None,
            )
        if not math.isfinite(summary.loss):
            raise RunError(
                f"client {self.client_id}, round {server_round}: the training loss is "
                f"{summary.loss}: lower learning-rate, or look at the client's data"
            )
        return summary

    @contextmanager
    def layer_stream(self, purpose: str, server_round: int) -> Iterator[None]:
        """Give torch's global stream, which layers such as dropout draw from, a seed.

        The global stream is put back afterwards.
        """
        devices = [torch.cuda.current_device()] if self._on_cuda() else []
        name = f"{purpose}-layers"
        with torch.random.fork_rng(devices=devices):
            # Not torch.manual_seed: it would reseed, and each time look for, every GPU.
            seed = stream_seed(self.seed, name, server_round, self.client_id)
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            yield

    def train_metrics(self, summary: TrainingSummary) -> dict[str, MetricValue]:
        """Return the metrics that a training reports."""
        return {
            NUM_EXAMPLES: len(self.train_data),
            "loss": summary.loss,
            NUM_STEPS: summary.num_steps,
        }

    def evaluation(self, data: Split) -> Reply:
        """Evaluate ``self.model`` and return the reply."""
        loss, accuracy = evaluate_model(self.model, data)
        return Reply(metrics={NUM_EXAMPLES: len(data), "loss": loss, "accuracy": accuracy})

    def load_state(self, request: Request) -> Arrays | None:
        """Return the stored state to start from, or None if there is none yet."""
        if not request.start_version:
            return None
        return self.store.load(self.client_id, request.start_version)

    def save_state(self, request: Request, arrays: Arrays) -> dict[str, MetricValue]:
        """Store a new version of the state.

        Returns
        -------
        dict
            To be merged into the reply's metrics: tells the server of the new version.
        """
        if not request.new_version:
            return {}
        needed = {request.start_version, request.keep_version}
        self.store.save(self.client_id, request.new_version, arrays, needed)
        return {STORED_STATE: 1}

    def _on_cuda(self) -> bool:
        return self.train_data.features.is_cuda

    # ------------------------------------------------------------- Flower's NumPyClient

    def get_parameters(self, config: Mapping[str, ConfigValue]) -> list[NDArray[Any]]:
        """Return the model's arrays in ``state_dict`` order."""
        return list(model_arrays(self.model).values())

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Train, as Flower's NumPyClient does; see :meth:`on_train`."""
        reply = self.on_train(self._request(TRAIN, parameters, config))
        metrics = dict(reply.metrics)
        count = int(metrics.pop(NUM_EXAMPLES))  # type: ignore[arg-type]
        return list(reply.arrays.get(ARRAYS, {}).values()), count, metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Evaluate, as Flower's NumPyClient does; see :meth:`on_evaluate`."""
        reply = self.on_evaluate(self._request(EVALUATE, parameters, config))
        metrics = dict(reply.metrics)
        count = int(metrics.pop(NUM_EXAMPLES))  # type: ignore[arg-type]
        return float(metrics.pop("loss")), count, metrics  # type: ignore[arg-type]

    def _request(
        self, message_type: str, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> Request:
        if len(parameters) != len(self._names):
            raise RunError(
                f"client {self.client_id}: got {len(parameters)} arrays, its model has "
                f"{len(self._names)}: server and client must build the same model"
            )
        arrays = dict(zip(self._names, parameters, strict=True))
        return Request(message_type, self.client_id, {ARRAYS: arrays}, config)


def overrides(client: FederatedClient, hook: str) -> bool:
    """Return whether a client's class gives a hook a body of its own."""
    return getattr(type(client), hook) is not getattr(FederatedClient, hook)
