"""Ensemble distillation: the specification's numbers, and its steps by a second hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.data.public_batches import public_batch
from fedsuite.messages.records import LOGITS
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies.distillation.ensemble import (
    Combination,
    EnsembleDistillation,
    ensemble_loss,
)
from fedsuite.strategies.distillation.public_exchange import output_divergence
from tests.strategies.distillation.public import PUBLIC, Fixed, normalised

TEACHERS = torch.tensor(
    [
        [[2, 0, -2], [0, 1, 0], [1, 0.5, -1], [-1, 0, 2]],
        [[0, 1, 0], [1, -1, 0], [2, 0, 1], [0, 0.5, 1]],
        [[1, 2.5, -1], [-1, 0, 2], [0, 0, 3], [0.5, 1, 0]],
    ],
    dtype=torch.float64,
)
STUDENT = torch.tensor(
    [[0.5, 0.5, 0], [0, 0, 1], [1, 0, 0.5], [0, 1, 0]], dtype=torch.float64
)


@pytest.mark.parametrize(
    ("combination", "loss"),
    [("avg-logits", 0.097776), ("avg-probs", 0.093943), ("avg-losses", 0.353914)],
)
def test_the_specification_s_losses(combination: Combination, loss: float) -> None:
    found = float(ensemble_loss(STUDENT, TEACHERS, combination))
    assert found == pytest.approx(loss, abs=1e-6)


def slope(teachers: Tensor, student: Tensor, combination: Combination) -> Tensor:
    given = student.clone().requires_grad_(True)
    ensemble_loss(given, teachers, combination).backward()
    assert given.grad is not None
    return given.grad


@given(st.integers(1, 5), st.integers(0, 999), st.floats(0.1, 30))
def test_gradients_from_their_definitions(teachers: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    logits = scale * torch.randn(teachers, 3, 4, **options)  # type: ignore[call-overload]
    student = torch.randn(3, 4, **options)  # type: ignore[call-overload]
    p = functional.softmax(student, dim=1)
    mean_p = functional.softmax(logits, dim=2).mean(dim=0)
    of_mean = functional.softmax(logits.mean(dim=0), dim=1)
    wanted = {"avg-logits": of_mean, "avg-probs": mean_p, "avg-losses": mean_p}
    for combination, target in wanted.items():
        found = slope(logits, student, combination)  # type: ignore[arg-type]
        torch.testing.assert_close(found, (p - target) / 3)
    apart = ensemble_loss(student, logits, "avg-losses") - ensemble_loss(
        student, logits, "avg-probs"
    )
    divergence = output_divergence({k: {LOGITS: a.numpy()} for k, a in enumerate(logits)})
    assert float(apart) == pytest.approx(divergence, abs=1e-9)


def test_sure_teachers_make_no_nan() -> None:
    sure = torch.tensor([[[900.0, -900.0]], [[-900.0, 900.0]]])
    for combination in ("avg-logits", "avg-probs", "avg-losses"):
        student = torch.tensor([[0.3, -0.2]], requires_grad=True)
        loss = ensemble_loss(student, sure, combination)  # type: ignore[arg-type]
        loss.backward()
        assert student.grad is not None
        assert torch.isfinite(loss) and torch.isfinite(student.grad).all()


def distillation(build: Callable[[], nn.Module], **changes: object) -> EnsembleDistillation:
    settings: dict[str, object] = {
        "combination": "avg-logits",
        "steps": 4,
        "learning_rate": 0.1,
        "batch_size": 6,
        "seed": 5,
    }
    return EnsembleDistillation(lambda index: build(), PUBLIC, **settings | changes)  # type: ignore[arg-type]


class Loud(Fixed):
    """Logits whose first steps have a gradient of a norm above 5, and the last do not."""

    def forward(self, features: Tensor) -> Tensor:
        return 12 * super().forward(features)


def test_steps_are_adam_s_with_a_cosine_and_a_clip() -> None:
    """The same, written out: all rows are alike to the student, not to the teachers."""
    steps, rate, start = 5, 0.08, np.array([0.4, -0.1, 0.0])
    teachers = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(1))
    w, m, v, total, norms = start.copy(), np.zeros(3), np.zeros(3), 0.0, []
    for step in range(steps):
        rows = public_batch(20, 6, 5, 9, step)
        target = torch.softmax(teachers[:, rows].double().mean(dim=0), dim=1).numpy()
        p = np.exp(12 * w) / np.exp(12 * w).sum()
        total += float((target * np.log(target / p)).sum(axis=1).mean())
        gradient = 12 * (p - target.mean(axis=0))
        norms.append(np.linalg.norm(gradient))
        gradient *= min(1.0, 5 / norms[-1])
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        corrected = v / (1 - 0.999 ** (step + 1))
        now = rate * (1 + math.cos(math.pi * step / steps)) / 2
        w -= now * m / (1 - 0.9 ** (step + 1)) / (np.sqrt(corrected) + 1e-8)
    assert max(norms) > 5.5 and min(norms) < 4.5
    made = distillation(lambda: Loud(0.0, 0.0, 0.0), steps=steps, learning_rate=rate)
    arrays, loss = made.distil(0, {"logits": start.astype(np.float32)}, teachers, 9)
    np.testing.assert_allclose(arrays["logits"], w, atol=2e-6)
    assert loss == pytest.approx(total / steps, rel=1e-5)


def test_teachers_speak_in_evaluation_mode() -> None:
    model = normalised()
    held = model_arrays(model)
    held["1.running_mean"] += 2.0
    with torch.no_grad():
        model[1].running_mean += 2.0  # type: ignore[index, operator]
        wanted = model.eval()(PUBLIC)
    found = distillation(normalised).outputs(0, held)
    torch.testing.assert_close(found, wanted)


def test_students_are_in_training_mode_and_leave_no_trace() -> None:
    start = model_arrays(normalised())
    before = {name: array.copy() for name, array in start.items()}
    teachers = torch.randn(2, len(PUBLIC), 3)
    built = normalised()
    made = distillation(lambda: built)
    state = torch.get_rng_state()
    arrays, _ = made.distil(0, start, teachers, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert int(arrays["1.num_batches_tracked"]) == 4
    assert not np.array_equal(arrays["1.running_mean"], before["1.running_mean"])
    for name, array in start.items():
        np.testing.assert_array_equal(array, before[name])
    torch.manual_seed(77)
    again, _ = made.distil(0, start, teachers, 1)
    other, _ = made.distil(0, start, teachers, 2)
    for name, array in again.items():
        np.testing.assert_array_equal(array, arrays[name])
    assert not np.array_equal(other["0.weight"], arrays["0.weight"])


def test_a_student_learns() -> None:
    said = torch.tensor([2.0, 0.0, -1.0]).expand(1, len(PUBLIC), 3)
    made = distillation(lambda: Fixed(0.0, 0.0, 0.0), steps=100)
    arrays, _ = made.distil(0, {"logits": np.zeros(3, np.float32)}, said, 1)
    learnt = made.outputs(0, arrays)
    assert float(ensemble_loss(learnt, said, "avg-logits")) < 1e-3
