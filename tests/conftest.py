"""Settings and fixtures shared by all tests."""

import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Machines that run CI stall now and then; no test is about speed.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

# A shell that runs the tests in the background hands down ignored signals; the programs
# that tests start and interrupt would inherit them.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the README's commands, so that no core waits for them in the end."""
    items.sort(key=lambda item: item.path.name != "test_readme.py")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread, as every process of fedsuite does by default."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
