"""The mean of what clients say on public data, and how far they are apart."""

import math

import numpy as np
import pytest

from fedsuite.messages.records import LOGITS
from fedsuite.strategies.distillation.public_exchange import mean_outputs, output_divergence


def test_outputs_of_clients_that_agree_do_not_diverge() -> None:
    same = {k: {LOGITS: np.ones((2, 3), np.float32)} for k in range(4)}
    assert output_divergence(same) == pytest.approx(0.0, abs=1e-12)
    apart = np.full((2, 1, 2), -500.0, np.float32)
    apart[0, 0, 0] = apart[1, 0, 1] = 500.0
    found = output_divergence({k: {LOGITS: apart[k]} for k in range(2)})
    assert found == pytest.approx(math.log(2))
    shifted = {k: {LOGITS: apart[k] + 7 * k} for k in range(2)}
    assert output_divergence(shifted) == pytest.approx(math.log(2))


def test_a_mean_is_over_clients_and_rounded_once() -> None:
    big = np.float32(2**24)
    outputs = {k: {LOGITS: np.array([[x]], np.float32)} for k, x in enumerate((big, 1, 1))}
    found = mean_outputs(outputs)[LOGITS]
    assert found.dtype == np.float32
    assert found[0, 0] == np.float32((float(big) + 2) / 3)
