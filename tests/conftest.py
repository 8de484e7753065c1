"""Settings and fixtures shared by all tests."""

import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator

import pytest
import torch
from hypothesis import settings

# Machines that run CI stall now and then; no test is about speed. `make nightly` looks at
# many more examples, by --hypothesis-profile.
settings.register_profile("suite", deadline=None, max_examples=30)
settings.register_profile("nightly", deadline=None, max_examples=300)
settings.load_profile("suite")

# A shell that runs the tests in the background hands down ignored signals; the programs
# that tests start and interrupt would inherit them.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from modules and tests, none of which ever goes.

    Each of its full passes over so many objects takes as long as a small run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the README's commands, so that no core waits for them in the end."""
    items.sort(key=lambda item: item.path.name != "test_readme.py")


def _taken_for_flushed(descriptor: int) -> None:
    """Refuse what is no open file, as a flush does."""
    os.fstat(descriptor)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Take each flush of this process for done: a small run asks for dozens.

    No test cuts a machine's power: those of lost power note what was flushed themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _taken_for_flushed)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread, as every process of fedsuite does by default."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers as forks, though other tests have left threads.

    Beside a thread each would be a new Python, which imports torch for seconds:
    tests/engines/pool shows both ways.
    """
    monkeypatch.setattr("fedsuite.engines.pool.process._can_fork", lambda threads: True)
