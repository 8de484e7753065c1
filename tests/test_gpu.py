"""On a GPU: the CPU's results, within the tolerance of float32 sums in another order.

``FEDSUITE_TEST_GPU=cpu`` takes the processor for the GPU, so that the tests themselves run
where there is none.
"""

import os

import numpy as np
import pytest
import torch

from tests.helpers import digits_experiment, run_digits

GPU = os.environ.get("FEDSUITE_TEST_GPU", "cuda")

pytestmark = pytest.mark.skipif(
    GPU == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)

SHORT = {"num_rounds": 2, "local_steps": 3, "learning_rate": 0.05}
EXPERIMENTS = {
    "fedavg": {"method": "fedavg", "model": "mlp"},
    "fedavg-cnn": {"method": "fedavg", "model": "cnn-shallow"},
    "fedeba-plus": {"method": "fedeba-plus", "model": "mlp", "learning_rate": 0.01},
    "scaffold": {"method": "scaffold", "model": "mlp"},
    # Adam divides rounding by rounding where a gradient is close to 0.
    "fedakd": {"method": "fedakd", "model": "mlp", "optimizer": "sgd"},
    "fedal": {"method": "fedal", "model": "mlp", "optimizer": "adam", "public_size": 64},
    "decomposition": {"method": "fedavg", "model": "cnn-shallow", "decomposition": True},
}


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_results_are_those_of_the_processor(name):
    changes = SHORT | EXPERIMENTS[name]
    on_cpu = run_digits(digits_experiment(**changes, device="cpu")).arrays[-1]
    on_gpu = run_digits(digits_experiment(**changes, device=GPU)).arrays[-1]
    again = run_digits(digits_experiment(**changes, device=GPU)).arrays[-1]
    assert list(on_gpu) == list(on_cpu)
    start = run_digits(digits_experiment(**changes, device="cpu")).arrays[0]
    for key, expected in on_cpu.items():
        np.testing.assert_allclose(on_gpu[key], expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(again[key], on_gpu[key], rtol=1e-3, atol=1e-5)
    moved = [np.abs(on_cpu[key] - start[key]).max() for key in on_cpu if on_cpu[key].size]
    # Far more than the tolerance: a run that did not train would pass otherwise.
    assert not moved or max(moved) > 1e-4
