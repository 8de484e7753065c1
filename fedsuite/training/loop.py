"""Local training: options, mini-batches, optimiser, steps."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, Protocol, Self, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import AUTO, Unless, With
from fedsuite.core.search import Between, HalfDecades
from fedsuite.core.settings import Settings, given, key
from fedsuite.core.tasks import CLASSIFICATION, LOSSES, TASKS
from fedsuite.data import Split
from fedsuite.models.one_row import one_row_failure
from fedsuite.training.dense_gradients import DenseGradients, plain_layers
from fedsuite.training.losses import LossFunction, count_targets, cross_entropy
from fedsuite.training.optimizers import PlainAdam, PlainSGD

_GRADIENTS: WeakKeyDictionary[nn.Module, DenseGradients] = WeakKeyDictionary()
"""Memory for the gradients of networks in training, which the next training overwrites."""


class TrainingOptions(Settings):
    """Options of local training."""

    local_epochs: int = key(
        default=1,
        help="passes over the client's training data in a round; where a method has "
        "another phase too, in the one on labels. Naming this, local-steps or batch-size "
        "puts all three in place of the method's own",
        minimum=0,
    )
    local_steps: int = key(
        default=0,
        help="mini-batch steps in a round, in place of local-epochs; 0 counts local-epochs",
        minimum=0,
    )
    batch_size: int = key(
        default=32,
        help="samples per mini-batch; 0 is all of the client's data. A last one of one row "
        "joins the one before, where the network cannot train on one",
        minimum=0,
    )
    learning_rate: float = key(
        default=0.1,
        help="step size of the local optimiser; where that is not sgd, name both",
        above=0.0,
        search=HalfDecades(),
    )
    learning_rate_decay: float = key(
        default=1.0,
        help="factor on the learning rate after each round; 1 is none",
        above=0.0,
        maximum=1.0,
    )
    learning_rate_decay_every: int = key(
        default=1,
        help="rounds between two decays of the learning rate",
        minimum=1,
        needs=(Unless("learning-rate-decay", 1.0),),
    )
    optimizer: Literal["sgd", "adam"] = key(default="sgd", help="local optimiser")
    momentum: float = key(
        default=0.0,
        help="momentum of sgd; 0 is none",
        minimum=0.0,
        maximum=1.0,
        needs=(With("optimizer", "sgd"),),
    )
    weight_decay: float = key(
        default=0.0, help="L2 penalty of the optimiser; 0 is none", minimum=0.0
    )
    clip_gradient_norm: float = key(
        default=0.0,
        help="largest norm of the gradient of a step, after a method's correction and "
        "before weight decay; 0 does not clip",
        minimum=0.0,
    )
    crop_and_flip: bool = key(
        default=False,
        help="shift training images by up to 4 pixels and mirror half of them, anew each "
        "time",
    )
    loss: str = key(
        default=AUTO,
        help="what clients minimise; auto is the task's own, such as cross-entropy; "
        "evaluations report the cross-entropy of classes, else this loss",
        choices=(AUTO, *LOSSES),
    )
    class_weights: str = key(
        default="",
        help="weights of the classes in the loss, comma-separated, or balanced: each "
        "client's classes alike, by its own rows; empty is none",
    )
    huber_delta: float = key(
        default=1.0,
        help="error from which the loss huber grows evenly, in the target's unit",
        above=0.0,
        needs=(With("loss", "huber"),),
    )
    quantile: float = key(
        default=0.5,
        help="quantile that the loss quantile has models predict; 0.5 is the median",
        above=0.0,
        maximum=1.0,
        needs=(With("loss", "quantile"),),
    )
    focal_gamma: float = key(
        default=2.0,
        help="how little the focal loss weighs what is predicted well; 0 is cross-entropy",
        minimum=0.0,
        needs=(With("loss", "focal"),),
    )
    decorrelation_weight: float = key(
        default=0.0,
        help="weight of FedDecorr's term, on the correlations of a mini-batch's features; "
        "0 is none, 0.1 its paper's",
        minimum=0.0,
        search=Between(0.01, 1.0),
    )
    logit_calibration: float = key(
        default=0.0,
        help="FedLC's tau: how far training lowers the logits of classes that a client has "
        "few rows of; 0 is not at all",
        minimum=0.0,
        search=Between(0.05, 2.0),
    )

    def at_one_rate(self, **changes: Any) -> Self:
        """Return these options with changes, and a learning rate that does not decay."""
        return replace(
            self, learning_rate_decay=1.0, learning_rate_decay_every=1, **changes
        )

    def learning_rate_at(self, server_round: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        decays = (server_round - 1) // self.learning_rate_decay_every
        return self.learning_rate * self.learning_rate_decay**decays

    task: str = given(default=CLASSIFICATION.name, help="what models are trained for")
    interval_ends: str = given(default="", help="ends of the intervals of discrete-time")

    def loss_on(self, labels: Tensor) -> LossFunction:
        """Return the loss that the options name, of a client with these labels."""
        name = TASKS[self.task].losses[0] if self.loss == AUTO else self.loss
        return module_of(self.task).loss(name, self, labels)


@dataclass(frozen=True)
class TrainingSummary:
    """Results of a local training.

    ``loss`` is the mean over the targets seen, before each step, and 0 if there were none.
    ``num_steps`` counts the optimiser's steps.
    """

    loss: float
    num_steps: int

    def then(self, second: "TrainingSummary") -> "TrainingSummary":
        """Return the summary of this training and of a second one, weighted by steps."""
        steps = self.num_steps + second.num_steps
        total = self.loss * self.num_steps + second.loss * second.num_steps
        return TrainingSummary(total / steps if steps else 0.0, steps)


def make_optimizer(
    model: nn.Module, options: TrainingOptions, server_round: int
) -> torch.optim.Optimizer:
    """Return a fresh optimiser over the parameters that require a gradient.

    Raises
    ------
    ConfigError
        If there are none, as in a client's own head that was copied from a frozen one.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError(
            f"nothing of the {type(model).__name__} that the method has a client train "
            "requires a gradient: unfreeze it, name it in travels, or choose another method"
        )
    rate = options.learning_rate_at(server_round)
    if options.optimizer == "adam":
        return PlainAdam(parameters, lr=rate, weight_decay=options.weight_decay, fused=True)
    decay, momentum = options.weight_decay, options.momentum
    return PlainSGD(parameters, lr=rate, momentum=momentum, weight_decay=decay, fused=True)


def take_step(optimizer: torch.optim.Optimizer, clip_gradient_norm: float = 0.0) -> None:
    """Take a step, with gradients clipped to a norm above 0, and forget the gradients."""
    if clip_gradient_norm > 0:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, clip_gradient_norm)
    optimizer.step()
    optimizer.zero_grad()


def fewest_rows(
    model: nn.Module, data: Split, num_examples: int, options: TrainingOptions
) -> int:
    """Return how few rows a mini-batch of one local training may have: 1, or else 2.

    Two where the network cannot train on one, and a mini-batch of one would come. RunError
    if all would have one row.

    Parameters
    ----------
    model
        The network.
    data
        The client's rows, on the model's device.
    num_examples
        Number of the rows that are trained on.
    options
        How to train.
    """
    size = options.batch_size or num_examples
    if num_examples == 0 or num_examples % size != 1 % size:
        return 1
    reason = one_row_failure(model, data.features)
    if reason and size == 1 < num_examples:
        raise RunError(
            f"batch-size = 1: the network cannot train on one row ({reason}): give 2 or "
            "more, or choose a model without batch normalisation"
        )
    return 2 if reason else 1


def num_steps(num_examples: int, options: TrainingOptions, fewest: int = 1) -> int:
    """Return the number of mini-batches of one local training, of ``fewest`` rows each."""
    if num_examples < fewest:
        return 0
    return options.local_steps or options.local_epochs * len(
        _first_rows(num_examples, options, fewest)
    )


def _first_rows(num_examples: int, options: TrainingOptions, fewest: int) -> range:
    """Return where the mini-batches of one pass begin."""
    return range(0, num_examples - fewest + 1, options.batch_size or num_examples)


def mini_batches(
    num_examples: int,
    options: TrainingOptions,
    generator: torch.Generator,
    fewest: int = 1,
) -> Iterator[Tensor]:
    """Yield the sample indices of each mini-batch of one local training.

    Each pass is a fresh permutation; its last batch may be smaller. One of less than
    ``fewest`` rows joins the one before, and fewer rows than that are no batch.
    ``local_steps`` takes as many passes as that number of batches needs.
    """
    size = options.batch_size or num_examples
    steps_left = num_steps(num_examples, options, fewest)
    while steps_left > 0:
        order = torch.randperm(num_examples, generator=generator)
        starts = _first_rows(num_examples, options, fewest)
        for start in starts:
            if steps_left == 0:
                return
            steps_left -= 1
            yield order[start:] if start == starts[-1] else order[start : start + size]


def run_steps(
    model: nn.Module,
    data: Split,
    batches: Iterator[Tensor],
    optimizer: torch.optim.Optimizer,
    loss_function: LossFunction,
    before_step: Callable[[nn.Module], None] | None = None,
    after_step: Callable[[nn.Module, int], None] | None = None,
    frozen: Sequence[nn.Module] = (),
    clip_gradient_norm: float = 0.0,
) -> TrainingSummary:
    """Train on the given mini-batches, in training mode.

    ``batches`` yields the sample indices of each step. ``before_step`` corrects the
    gradients in place; ``after_step`` gets the step's number, from 1. Modules in ``frozen``
    stay in evaluation mode, so that no statistic of theirs moves. ``clip_gradient_norm`` is
    the largest norm of the gradient as ``before_step`` leaves it; 0 does not clip.
    """
    # Torch takes longer to set a mode than to look whether it is set.
    if not all(module.training for module in model.modules()):
        model.train()
    for module in frozen:
        module.training = False
    gradient = _gradient_function(model, data, loss_function, optimizer)
    total = 0.0
    num_seen = steps = 0
    for batch in batches:
        rows = batch.to(data.labels.device)
        # On a processor several times as fast as data.features[rows].
        labels = data.labels.index_select(0, rows)
        loss = gradient(data.features.index_select(0, rows), labels)
        if before_step is not None:
            before_step(model)
        if clip_gradient_norm > 0:
            nn.utils.clip_grad_norm_(model.parameters(), clip_gradient_norm)
        optimizer.step()
        steps += 1
        if after_step is not None:
            after_step(model, steps)
        count = count_targets(labels)
        total += loss * count
        num_seen += count
    return TrainingSummary(total / num_seen if num_seen else 0.0, steps)


def _gradient_function(
    model: nn.Module,
    data: Split,
    loss_function: LossFunction,
    optimizer: torch.optim.Optimizer,
) -> Callable[[Tensor, Tensor], float]:
    """Return what puts a mini-batch's gradient into the parameters and gives the loss."""
    plain = loss_function is cross_entropy and data.labels.ndim == 1
    layers = plain_layers(model) if plain else []
    if layers:
        # Memory for gradients that is the last client's too is in the cache.
        dense = _GRADIENTS.get(model)
        if dense is None or dense.layers != layers:
            dense = _GRADIENTS[model] = DenseGradients(layers)
        return dense

    def gradient(features: Tensor, labels: Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model, features, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return gradient


@contextmanager
def frozen_arrays(model: nn.Module, names: Collection[str]) -> Iterator[list[nn.Module]]:
    """Take the gradients of some parameters away, and give them back afterwards.

    Yields the modules that hold the named parameters and buffers, for :func:`run_steps`.
    """
    if not names:
        yield []
        return
    gradients = [
        module
        for prefix, module in model.named_modules()
        if any(name in names for name in _own_names(module, prefix))
    ]
    taken = [p for n, p in model.named_parameters() if n in names and p.requires_grad]
    for parameter in taken:
        parameter.requires_grad_(False)
        parameter.grad = None
    try:
        yield gradients
    finally:
        for parameter in taken:
            parameter.requires_grad_(True)


def _own_names(module: nn.Module, prefix: str) -> Iterator[str]:
    """Yield the whole model's names of a module's own arrays, without its children's."""
    yield from (name for name, _ in module.named_parameters(prefix, recurse=False))
    yield from (name for name, _ in module.named_buffers(prefix, recurse=False))


def resolve_device(name: str) -> torch.device:
    """Return the device that the key ``device`` names.

    ``auto`` is the GPU that this process sees (Ray shows each client its own, or a share),
    else the CPU. ConfigError for a GPU that this process does not see.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "key device = 'cuda': this process sees no GPU; use auto or cpu, or give "
            "clients a share of one"
        )
    return torch.device(name)


class TaskModule(Protocol):
    """The file that a task's ``module`` names (:mod:`fedsuite.core.tasks`)."""

    def loss(self, name: str, options: TrainingOptions, labels: Tensor) -> LossFunction:
        """Return one of the task's losses: the mean of a mini-batch, from model and rows.

        ``labels`` are all training labels of the client.
        """

    def scores(
        self,
        names: Sequence[str],
        outputs: Tensor,
        labels: Tensor,
        options: TrainingOptions,
    ) -> Mapping[str, float]:
        """Return the named scores by name, on the CPU; NaN where one is undefined.

        ``outputs`` are the model's on all rows, ``labels`` theirs. Names of ``Task.lists``
        give several entries each.
        """


def module_of(task: str) -> TaskModule:
    """Return the file that computes a task's losses and scores."""
    return cast(TaskModule, import_module(TASKS[task].module))
