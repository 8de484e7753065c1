"""The base of all clients.

A method overrides a hook (:meth:`FederatedClient.loss`,
:meth:`FederatedClient.before_step`, ...) or a whole action
(:meth:`FederatedClient.on_train`). A client answers ``fit`` and ``evaluate`` of Flower's
NumPyClient, and messages through :mod:`fedsuite.training.app`.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.core.errors import ConfigError, NotFiniteError, RunError
from fedsuite.core.rng import numpy_stream, stream_seed, torch_stream
from fedsuite.core.tasks import TASKS
from fedsuite.data import Split
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    NUM_EXAMPLES,
    NUM_STEPS,
    STORED_STATE,
    TRAIN,
    Arrays,
    ConfigValue,
    MetricValue,
    Reply,
    Request,
)
from fedsuite.messages.versions import exchange_of
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.travelling import names_at_home, without
from fedsuite.training.augmentation import crop_and_flip
from fedsuite.training.evaluation import mean_loss, model_scores
from fedsuite.training.extra_losses import decorrelated, loss_on
from fedsuite.training.loop import (
    TrainingOptions,
    TrainingSummary,
    fewest_rows,
    frozen_arrays,
    make_optimizer,
    mini_batches,
    run_steps,
)
from fedsuite.training.losses import LossFunction, count_targets
from fedsuite.training.scoring import Scoring, prefixed
from fedsuite.training.sent import OF_ANY_METHOD, may_send, refuse_undeclared
from fedsuite.training.store import ClientStore, MemoryStore
from fedsuite.training.told import told_of
from fedsuite.training.upload_noise import UploadNoise, privatise

_IDENTITY = nn.Identity()


class FederatedClient(NumPyClient):
    """Base of all clients.

    Parameters
    ----------
    model
        Network to train. Clients of one process may share it: each request loads what it
        needs.
    train, test
        The client's data, on the model's device.
    validation
        Rows for choices of rounds, models and keys: neither trained nor tested on, and
        scored at each evaluation. None where there are none.
    training
        How to train.
    client_id, seed
        Name the client's random streams.
    store
        Keeps what must survive between rounds.
    privacy
        Clipping and noise of what leaves the client; off unless given.
    scoring
        Scores beside that on the own test data; none unless given.
    public
        Public inputs without labels, on the model's device, read-only, the same for all
        clients. None where there are none.
    """

    ACTIONS: ClassVar[Mapping[str, str]] = {TRAIN: "on_train", EVALUATE: "on_evaluate"}
    """Message type to the name of the method that answers it."""

    TRAINED: ClassVar[frozenset[str]] = frozenset({ARRAYS})
    """Records of a reply that hold the received model after training: with privacy on, it
    is their change that is clipped. Of all other records it is what stands in them."""

    SENDS: ClassVar[frozenset[str]] = OF_ANY_METHOD
    """Names of all that the class's replies may hold, see :mod:`fedsuite.training.sent`. A
    reply that holds more is refused at the client."""

    KEEPS_STATE: ClassVar[bool] = False
    """Whether the client may call :meth:`save_state`. On several machines it then needs a
    folder that all share."""

    TRAINED_BY: ClassVar[str] = TRAIN
    """Message type that has the client train on its data: scored after it, if asked for."""

    TASKS: ClassVar[frozenset[str]] = frozenset(TASKS)
    """Tasks that the class can train for: fewer where a hook of it needs more than a loss,
    such as a logit per class."""

    def __init__(
        self,
        model: nn.Module,
        train: Split,
        test: Split,
        *,
        validation: Split | None = None,
        training: TrainingOptions | None = None,
        client_id: int = 0,
        seed: int = 0,
        store: ClientStore | None = None,
        privacy: UploadNoise | None = None,
        scoring: Scoring | None = None,
        public: Tensor | None = None,
    ) -> None:
        self.model = model
        self.train_data = train
        self.test_data = test
        self.validation_data = validation
        self.training = training or TrainingOptions()
        if self.training.task not in type(self).TASKS:
            raise ConfigError(
                f"task {self.training.task}: {type(self).__name__} can train for "
                f"{', '.join(sorted(type(self).TASKS))} alone: choose another method"
            )
        self._plain_loss = loss_on(self.training, train.labels)
        self.client_id = client_id
        self.seed = seed
        self.store = store if store is not None else MemoryStore()
        self.privacy = privacy or UploadNoise()
        self.scoring = scoring or Scoring()
        self.public = public
        self.heard: Mapping[str, ConfigValue] = {}

    def answer(self, request: Request) -> Reply:
        """Answer a request; RunError for an unknown message type.

        The reply repeats the settings of the message that the class declares to read, so
        that the server sees whether this is a client that knows its method.
        """
        action = self.ACTIONS.get(request.message_type)
        if action is None:
            raise RunError(
                f"{type(self).__name__} does not answer {request.message_type!r}: use the "
                "strategy that belongs to it"
            )
        self.heard = request.config
        scoring, more = self.scoring, dict[str, MetricValue]()
        if scoring.score_training_data:
            more = scoring.received(self.model, request, self.train_data, self._plain_loss)
        reply: Reply = getattr(self, action)(request)
        scored = scoring.score_trained and scoring.is_scored(request.server_round)
        if scored and request.message_type == self.TRAINED_BY:
            more = prefixed("trained", self.evaluation().metrics)
        heard = {n: request.config[n] for n in told_of(type(self)) if n in request.config}
        if more or heard:
            reply = replace(reply, metrics={**reply.metrics, **more}, followed=heard)
        if at_home := names_at_home(self.model):
            arrays = {name: without(a, at_home) for name, a in reply.arrays.items()}
            reply = replace(reply, arrays=arrays)
        refuse_undeclared(type(self).__name__, reply, may_send(type(self)))
        return self.protect(request, reply, self.privacy)

    def on_train(self, request: Request) -> Reply:
        """Train the received arrays on the client's data and send them back.

        Arrays of the model that the message does not hold stay at home.
        """
        received = request.arrays[ARRAYS]
        load_arrays(self.model, received)
        summary = self.train_locally(request)
        trained = model_arrays(self.model, received)
        return Reply({ARRAYS: trained}, self.train_metrics(summary))

    def on_evaluate(self, request: Request) -> Reply:
        """Evaluate :meth:`evaluated` on the client's test and validation data."""
        return self.evaluation(self.evaluated(request))

    def evaluated(self, request: Request) -> nn.Module:
        """Return the model that the client is scored with: the received one.

        What a user of the run predicts with, too. A method that gives a client another one
        overrides this. It may be ``self.model``, which holds it until the next message.
        """
        load_arrays(self.model, request.arrays[ARRAYS])
        return self.model

    def model_for(self, request: Request) -> nn.Module:
        """Return a copy of what :meth:`evaluated` makes of a message, ready to predict."""
        self.heard = request.config
        return deepcopy(self.evaluated(request)).eval()

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch, that of the options.

        Overrides build on ``super().loss``.
        """
        return self._plain_loss(model, features, labels)

    def before_step(self, model: nn.Module) -> None:
        """Correct the gradients in place, between backward pass and step."""

    def after_step(self, model: nn.Module, step: int) -> None:
        """Act after an optimiser step; ``step`` counts from 1."""

    def mini_batches(
        self, num_examples: int, training: TrainingOptions, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Yield the sample indices of each step of one local training."""
        fewest = fewest_rows(self.model, self.train_data, num_examples, training)
        return mini_batches(num_examples, training, generator, fewest)

    def make_optimizer(
        self, training: TrainingOptions, server_round: int
    ) -> torch.optim.Optimizer:
        """Return a fresh optimiser for one training of ``self.model``."""
        return make_optimizer(self.model, training, server_round)

    def loss_of_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of the options from logits.

        For methods that use a pass's logits otherwise too.
        """
        # To the loss the identity is a model that gives them.
        return self._plain_loss(_IDENTITY, logits, labels)

    def train_locally(
        self,
        request: Request,
        purpose: str = "batches",
        *,
        training: TrainingOptions | None = None,
        frozen: Collection[str] = (),
        rows: Tensor | None = None,
    ) -> TrainingSummary:
        """Train ``self.model`` as the options say.

        ``request`` names the round, for learning rate and random streams. ``purpose`` names
        the stream of mini-batches: each of a round's trainings needs its own. ``training``
        replaces the client's options. ``frozen`` names arrays that stay as they are; no
        step is taken if they are the whole model. ``rows`` are the numbers of the samples
        to train on, on the CPU; None is all. NotFiniteError if the loss is so.
        """
        training = training or self.training
        server_round = request.server_round
        keys = (self.seed, purpose, server_round, self.client_id)
        count = len(self.train_data) if rows is None else len(rows)
        batches = self.mini_batches(count, training, torch_stream(*keys))
        if rows is not None:
            batches = (rows[batch] for batch in batches)
        with frozen_arrays(self.model, frozen) as modules:
            if not any(p.requires_grad for p in self.model.parameters()):
                return TrainingSummary(0.0, 0)
            optimizer = self.make_optimizer(training, server_round)
            with self.layer_stream(purpose, server_round):
                summary = run_steps(
                    self.model,
                    self.train_data,
                    batches,
                    optimizer,
                    self.training_loss(training, purpose, server_round),
                    self.before_step if overrides(self, "before_step") else None,
                    self.after_step if overrides(self, "after_step") else None,
                    frozen=modules,
                    clip_gradient_norm=training.clip_gradient_norm,
                )
        if not math.isfinite(summary.loss):
            raise NotFiniteError(
                f"client {self.client_id}, round {server_round}: the training loss is "
                f"{summary.loss}: lower learning-rate, or look at the client's data; where "
                "most clients fail, at the model that they got"
            )
        return summary

    def training_loss(
        self, training: TrainingOptions, purpose: str, server_round: int
    ) -> LossFunction:
        """Return :meth:`known_loss`, on augmented images where the options say so."""
        loss = self.known_loss()
        if not training.crop_and_flip:
            return loss
        keys = (self.seed, f"{purpose}-augmentation", server_round, self.client_id)
        stream = torch_stream(*keys)
        return lambda model, features, labels: loss(
            model, crop_and_flip(features, stream), labels
        )

    def known_loss(self) -> LossFunction:
        """Return the options' loss function where the hook ``loss`` is that, else the hook.

        :func:`~fedsuite.training.loop.run_steps` computes some known losses without
        autograd. FedDecorr's term comes on top of either.
        """
        loss = self.loss if overrides(self, "loss") else self._plain_loss
        weight = self.training.decorrelation_weight
        return decorrelated(loss, weight) if weight else loss

    @contextmanager
    def layer_stream(self, purpose: str, server_round: int) -> Iterator[None]:
        """Give layers such as dropout a stream of their own.

        Layers draw from torch's global stream, which is put back afterwards.
        """
        on_gpu = self.train_data.features.is_cuda
        devices = [torch.cuda.current_device()] if on_gpu else []
        with torch.random.fork_rng(devices=devices):
            # Not torch.manual_seed: it would reseed, and each time look for, every GPU.
            keys = self.seed, f"{purpose}-layers", server_round, self.client_id
            seed = stream_seed(*keys)
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            yield

    def full_loss(self, request: Request) -> float:
        """Return the mean of the hook ``loss`` over the training set, in evaluation mode.

        No buffer and no other random stream changes.
        """
        with self.layer_stream("probe", request.server_round):
            return mean_loss(self.model, self.train_data, self.loss)

    def train_metrics(self, summary: TrainingSummary) -> dict[str, MetricValue]:
        """Return the metrics that a training reports."""
        count, steps = len(self.train_data), summary.num_steps
        return {NUM_EXAMPLES: count, "loss": summary.loss, NUM_STEPS: steps}

    def evaluation(self, model: nn.Module | None = None) -> Reply:
        """Return the scores of a model, None being ``self.model``, on all scored rows."""
        model = self.model if model is None else model
        count = count_targets(self.test_data.labels)
        metrics = {NUM_EXAMPLES: count, **self._scores_on(model, self.test_data)}
        if (rows := self.validation_data) is not None:
            own = {**self._scores_on(model, rows), "examples": count_targets(rows.labels)}
            metrics |= prefixed("validation", own)
        if whole := self.scoring.whole_test:
            metrics |= whole.scores(model, self.training, self._score_names)
        return Reply(metrics=metrics)

    def _scores_on(self, model: nn.Module, rows: Split) -> dict[str, MetricValue]:
        return model_scores(model, rows, self.training, self._score_names)

    @cached_property
    def _score_names(self) -> tuple[str, ...]:
        """The scores of each evaluation."""
        return TASKS[self.training.task].chosen(self.scoring.scores)

    def load_state(self, request: Request) -> Arrays | None:
        """Return the stored state to start from, or None if there is none yet."""
        if not request.start_version:
            return None
        return self.store.load(self.client_id, request.start_version)

    def save_state(self, request: Request, arrays: Arrays) -> dict[str, MetricValue]:
        """Store a new version of the state; return metrics that tell the server of it.

        RunError if the class does not declare that it keeps any.
        """
        if not self.KEEPS_STATE:
            raise RunError(
                f"{type(self).__name__} stores something between rounds and does not say "
                "so: set KEEPS_STATE = True in its class"
            )
        if not request.new_version:
            return {}
        version, needed = request.new_version, request.needed_versions
        kept = without(arrays, names_at_home(self.model))
        self.store.save(self.client_id, version, kept, needed)
        return {STORED_STATE: 1}

    def protect(self, request: Request, reply: Reply, privacy: UploadNoise) -> Reply:
        """Clip arrays that are about to leave, and add noise.

        Changes are measured from the model in ``request``, as the client got it.
        """
        if privacy.upload_noise_multiplier == 0 or not reply.arrays:
            return reply
        received = request.arrays.get(ARRAYS, {})
        # Of all attempts alike: a resumed run adds the noise that it would have added.
        exchange = exchange_of(request.new_version) or str(request.server_round)
        protected = {}
        for name, arrays in reply.arrays.items():
            self._refuse_statistics(arrays)
            purpose = f"privacy/{request.message_type}/{exchange}/{name}"
            stream = numpy_stream(self.seed, purpose, request.server_round, self.client_id)
            start = received if name in self.TRAINED else {}
            protected[name] = privatise(arrays, start, privacy, stream)
        return replace(reply, arrays=protected)

    def _refuse_statistics(self, arrays: Arrays) -> None:
        buffers = {name for name, _ in self.model.named_buffers()}
        for name, array in arrays.items():
            if name in buffers or array.dtype.kind != "f":
                raise RunError(
                    f"client {self.client_id}: upload-noise-multiplier is above 0, and "
                    f"noise would make {name} useless, which is counted or measured: "
                    "choose a model without normalisation layers, such as mlp or cnn"
                )

    @cached_property
    def _names(self) -> list[str]:
        """Names of all arrays of the model."""
        return list(self.model.state_dict())

    @override
    def get_parameters(self, config: Mapping[str, ConfigValue]) -> list[NDArray[Any]]:
        return list(model_arrays(self.model).values())

    @override
    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        reply = self.answer(self._request(TRAIN, parameters, config))
        metrics = {**reply.metrics, **reply.followed}
        count = int(metrics.pop(NUM_EXAMPLES))  # type: ignore[arg-type]
        return list(reply.arrays.get(ARRAYS, {}).values()), count, metrics

    @override
    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        reply = self.answer(self._request(EVALUATE, parameters, config))
        metrics = {**reply.metrics, **reply.followed}
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
    """Return whether a client's class overrides a hook."""
    return getattr(type(client), hook) is not getattr(FederatedClient, hook)
