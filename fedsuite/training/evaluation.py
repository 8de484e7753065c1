"""Losses, accuracies and gradients of a model on data, without a step.

Functions put the model into evaluation mode, and give it its own mode back. Data lie on the
model's device.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsuite.core.tasks import ACCURACY, ONE_CLASS, SCORES, TASKS
from fedsuite.data import Split
from fedsuite.messages.records import Arrays, MetricValue
from fedsuite.models.evaluation_mode import EVALUATION_BATCH, evaluation_mode
from fedsuite.models.features import feature_width, with_features
from fedsuite.training.dense_gradients import dense_gradients
from fedsuite.training.loop import TrainingOptions, module_of
from fedsuite.training.losses import (
    LossFunction,
    count_targets,
    cross_entropy,
    right_rows,
    right_targets,
    summed_cross_entropy,
)

# Small parts would not fill a GPU.
GPU_EVALUATION_BATCH = 1024

_SEVERAL = 2


@torch.no_grad()
def chosen_rows(
    model: nn.Module, data: Split, choose: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the ascending numbers, on the CPU, of the rows that ``choose`` takes.

    ``choose`` makes booleans of some rows' logits and labels.
    """
    masks = [choose(outputs, labels) for outputs, labels in outputs_over(model, data)]
    if not masks:
        return torch.zeros(0, dtype=torch.int64)
    return torch.cat(masks).cpu().nonzero().flatten()


@torch.no_grad()
def outputs_over(model: nn.Module, data: Split) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield outputs and labels of all of ``data``, part by part."""
    with evaluation_mode(model):
        for features, labels in _parts(data):
            yield model(features), labels


@torch.no_grad()
def features_over(model: nn.Module, data: Split) -> Tensor:
    """Return what enters the classifier for each row of ``data``, ``[rows, width]``."""
    with evaluation_mode(model):
        batches = [with_features(model, features)[0] for features, _ in _parts(data)]
    return torch.cat(batches) if batches else torch.zeros(0, feature_width(model))


def _parts(data: Split) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield data in parts that bound the memory of a forward pass."""
    size = GPU_EVALUATION_BATCH if data.features.is_cuda else EVALUATION_BATCH
    targets_of_a_row = data.labels.shape[1:].numel() or 1
    rows = max(size // targets_of_a_row, 1)
    if 0 < len(data) <= rows:
        # Whole: where clients are small and many, slices are a tenth of the time.
        yield data.features, data.labels
        return
    for start in range(0, len(data), rows):
        part = slice(start, start + rows)
        yield data.features[part], data.labels[part]


@torch.no_grad()
def evaluate_model(model: nn.Module, data: Split) -> tuple[float, float]:
    """Return mean cross-entropy and accuracy (a fraction); both are 0 of no targets."""
    return _of_parts(data, outputs_over(model, data))


def _of_parts(data: Split, parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return mean cross-entropy and accuracy of outputs, part by part."""
    count = count_targets(data.labels)
    if count == 0:
        return 0.0, 0.0
    loss = 0.0
    correct = 0
    for outputs, labels in parts:
        loss += float(summed_cross_entropy(outputs, labels))
        correct += int(right_targets(outputs, labels, data.never_right).sum())
    return loss / count, correct / count


@torch.no_grad()
def model_scores(
    model: nn.Module,
    data: Split,
    options: TrainingOptions,
    names: Sequence[str] = (ACCURACY.name,),
) -> dict[str, MetricValue]:
    """Return a model's loss and scores on ``data``, by metric.

    Of classes the loss is the cross-entropy, and where all rows are taken for one class,
    not all rightly, ``one-class`` is that class. Else the loss is the options'.

    Parameters
    ----------
    model, data
        The model and the rows, on one device.
    options
        The task, and the options of its loss.
    names
        The scores, without or with the accuracy of classes, which comes always.
    """
    task = TASKS[options.task]
    further = [name for name in names if name != ACCURACY.name]
    parts: list[tuple[Tensor, Tensor]] = []
    classes: set[int] = set()

    def kept() -> Iterator[tuple[Tensor, Tensor]]:
        for outputs, labels in outputs_over(model, data):
            if further:
                parts.append((outputs.cpu(), labels.cpu()))
            if len(classes) < _SEVERAL and len(labels):
                predicted = outputs.argmax(dim=-1)
                classes.update((int(predicted.min()), int(predicted.max())))
            yield outputs, labels

    if task.has_classes:
        loss, accuracy = _of_parts(data, kept())
        metrics: dict[str, MetricValue] = {"loss": loss, ACCURACY.name: accuracy}
        if len(classes) == 1 and accuracy < 1.0 and len(data) > 1:
            metrics[ONE_CLASS] = classes.pop()
    else:
        parts = [
            (outputs.cpu(), labels.cpu()) for outputs, labels in outputs_over(model, data)
        ]
        metrics = {"loss": 0.0}
    if not parts:
        return {**metrics, **dict.fromkeys((n for n in further if n in SCORES), math.nan)}
    outputs, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if not task.has_classes:
        # To the loss the identity is a model that gives them.
        loss_function = options.loss_on(labels)
        metrics["loss"] = float(loss_function(nn.Identity(), outputs, labels))
    return {**metrics, **module_of(task.name).scores(further, outputs, labels, options)}


@torch.no_grad()
def mean_loss(
    model: nn.Module, data: Split, loss_function: LossFunction = cross_entropy
) -> float:
    """Return the mean loss over all of ``data``; 0 of no targets."""
    with evaluation_mode(model):
        loss = sum(
            float(loss_function(model, features, labels)) * count_targets(labels)
            for features, labels in _parts(data)
        )
    return loss / max(count_targets(data.labels), 1)


@torch.no_grad()
def correct_predictions(model: nn.Module, data: Split) -> NDArray[np.uint8]:
    """Return 1 for each row whose targets the model gets right, all of them, else 0."""
    right = np.zeros(len(data), np.uint8)
    rows = chosen_rows(model, data, partial(right_rows, never_right=data.never_right))
    right[rows.numpy()] = 1
    return right


def probe_model(
    model: nn.Module, data: Split, loss_function: LossFunction = cross_entropy
) -> tuple[float, Arrays]:
    """Return the mean loss over all of ``data``, and its gradient by parameter name.

    Parameters, buffers and gradients of the model stay as they are.
    """
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    parameters = list(named.values())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    plain = loss_function is cross_entropy and data.labels.ndim == 1
    dense = dense_gradients(model) if plain else None

    def gradients_of(features: Tensor, labels: Tensor) -> tuple[float, Sequence[Tensor]]:
        count = count_targets(labels)
        if dense is not None:
            mean, gradients = dense.gradients(features, labels, count)
            return float(np.float32(mean) * np.float32(count)), gradients
        part = loss_function(model, features, labels) * count
        part_gradients = torch.autograd.grad(part, parameters, materialize_grads=True)
        return float(part.detach()), part_gradients

    loss = 0.0
    with evaluation_mode(model):
        for features, labels in _parts(data):
            part, gradients = gradients_of(features, labels)
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient
            loss += part
    count = max(count_targets(data.labels), 1)
    return loss / count, {
        name: np.array((total / count).cpu().numpy())
        for name, total in zip(named, sums, strict=True)
    }
