"""Functions of logits for knowledge distillation, shared by server and clients."""

import torch
from torch import Tensor
from torch.nn import functional


def kl_divergence(
    logits: Tensor, target_logits: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return the batch mean of KL(softmax(target / T) || softmax(logits / T)).

    The gradient by ``logits`` is (p - p_target) / (T batch), with the two softmaxes p. No
    gradient flows into the target.

    Parameters
    ----------
    logits, target_logits
        Shape (batch, classes).
    temperature
        T > 0; the larger, the more the unlikely classes count.

    Raises
    ------
    ValueError
        If T is not a number above 0, or the shapes differ.
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: expected a number > 0")
    if logits.shape != target_logits.shape:
        raise ValueError(
            f"logits of shapes {tuple(logits.shape)} and "
            f"{tuple(target_logits.shape)}: expected one shape"
        )
    current = functional.log_softmax(logits / temperature, dim=1)
    target = functional.log_softmax(target_logits.detach() / temperature, dim=1)
    return functional.kl_div(current, target, reduction="batchmean", log_target=True)


def probability_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Return the batch mean of KL(target || softmax(logits)).

    A zero in the target counts as 0. No gradient flows into the target.

    Parameters
    ----------
    logits
        Shape (batch, classes).
    target
        Probabilities of the same shape; each row sums to 1.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if logits.shape != target.shape:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)}, target of shape "
            f"{tuple(target.shape)}: expected one shape"
        )
    current = functional.log_softmax(logits, dim=1)
    return functional.kl_div(current, target.detach(), reduction="batchmean")


def distillation_loss(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return the batch mean of T^2 KL(softmax(teacher / T) || softmax(student / T)).

    The factor T^2 keeps the gradient's size from falling as 1 / T^2. No gradient flows
    into the teacher.

    Parameters
    ----------
    student_logits, teacher_logits
        Shape (batch, classes).
    temperature
        T > 0; the larger, the more the wrong classes count.

    Raises
    ------
    ValueError
        If T is not a number above 0, or the shapes differ.
    """
    return temperature**2 * kl_divergence(student_logits, teacher_logits, temperature)


def leave_one_out(mean: Tensor, own: Tensor, num_clients: int) -> Tensor:
    """Return the other clients' mean, (N mean - own) / (N - 1).

    Parameters
    ----------
    mean
        Mean over all N clients, with the client's own outputs.
    own
        The client's outputs, of the same shape.
    num_clients
        N, at least 2.

    Raises
    ------
    ValueError
        If N is below 2.
    """
    if num_clients < 2:
        raise ValueError(f"num_clients = {num_clients}: expected at least 2")
    return (num_clients * mean - own) / (num_clients - 1)


@torch.no_grad()
def select_correct(logits: Tensor, labels: Tensor, confidence: float = 0.0) -> Tensor:
    """Return a boolean mask (batch,) of the correctly classified samples.

    Parameters
    ----------
    logits
        Shape (batch, classes).
    labels
        Shape (batch,).
    confidence
        Least probability of the label, 0 to 1; 0 selects every correct sample.
    """
    correct = logits.argmax(dim=1) == labels
    if confidence == 0:
        return correct
    probability = functional.softmax(logits, dim=1).amax(dim=1)
    return correct & (probability >= confidence)
