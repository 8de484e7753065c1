"""Settings and fixtures shared by all tests."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Machines that run CI stall now and then; no test is about speed.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread, as every process of fedsuite does by default."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
