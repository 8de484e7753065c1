"""Knowledge distillation: functions of logits that server and client modules share."""

import torch
from torch import Tensor
from torch.nn import functional


def distillation_loss(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean of a batch.

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
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: expected a number > 0")
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"logits of shapes {tuple(student_logits.shape)} and "
            f"{tuple(teacher_logits.shape)}: expected one shape"
        )
    student = functional.log_softmax(student_logits / temperature, dim=1)
    teacher = functional.log_softmax(teacher_logits.detach() / temperature, dim=1)
    divergence = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return temperature**2 * divergence


@torch.no_grad()
def select_correct(logits: Tensor, labels: Tensor, confidence: float = 0.0) -> Tensor:
    """Return which samples are classified correctly, as booleans of shape (batch,).

    Parameters
    ----------
    logits
        Shape (batch, classes).
    labels
        Shape (batch,).
    confidence
        Least probability of the label for a sample to be taken, 0 to 1; 0 takes every
        correct one, however unsure the model is.
    """
    correct = logits.argmax(dim=1) == labels
    if confidence == 0:
        return correct
    probability = functional.softmax(logits, dim=1).amax(dim=1)
    return correct & (probability >= confidence)
