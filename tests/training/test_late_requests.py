"""Requests that are worked on late: repeated, reordered, or of a server that died."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from fedsuite.core.errors import RunError
from fedsuite.messages.records import Arrays
from fedsuite.training.store import ClientStore, FileStore, MemoryStore

OLD, NEW = 1_762_424_242_123, 1_762_424_299_456
"""Numbers of an attempt that was killed, and of the one that went on."""


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ClientStore:
    return FileStore(tmp_path) if request.param == "files" else MemoryStore()


def state(value: float) -> Arrays:
    return {"w": np.full(3, value, dtype=np.float32)}


def value(store: ClientStore, version: str) -> float | None:
    try:
        return float(store.load(0, version)["w"][0])
    except RunError:
        return None


def test_a_repeated_request_drops_no_newer_version(store: ClientStore) -> None:
    store.save(0, "1.1", state(1), {""})
    store.save(0, "2.1", state(2), {"1.1"})
    store.save(0, "1.1", state(1), {""})
    assert value(store, "2.1") == 2
    store.save(0, "3.1", state(3), {"2.1"})
    assert [value(store, f"{r}.1") for r in (1, 2, 3)] == [None, 2, 3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_in_whatever_order_the_newest_version_stays(
    order: tuple[int, ...], store: ClientStore
) -> None:
    """Rounds 9 and 10, too: names are compared as numbers."""
    asked = [("9.1", "8.1"), ("9.2", "9.1"), ("10.1", "9.2"), ("11.1", "10.1")]
    for index in order:
        version, start = asked[index]
        store.save(0, version, state(index), {start})
    assert value(store, "11.1") == 3


def test_a_killed_run_at_work_replaces_and_drops_nothing_of_the_new_one(
    store: ClientStore,
) -> None:
    """The new run went on from round 3; the old one's client was at work for round 5."""
    store.save(0, "3.1", state(3), {""})
    store.save(0, f"4.1-{NEW}", state(40), {"3.1"})
    store.save(0, f"5.1-{NEW}", state(50), {f"4.1-{NEW}", "3.1"})
    for old in (f"4.1-{OLD}", f"5.1-{OLD}", f"9.1-{OLD}", "4.1", "9.1"):
        store.save(0, old, state(9), {""})
        assert value(store, f"4.1-{NEW}") == 40
        assert value(store, f"5.1-{NEW}") == 50


def test_a_new_attempt_drops_what_came_after_its_checkpoint(store: ClientStore) -> None:
    for server_round in (3, 4, 7):
        store.save(0, f"{server_round}.1-{OLD}", state(server_round), {f"3.1-{OLD}"})
    store.save(0, f"4.1-{NEW}", state(40), {f"3.1-{OLD}"})
    assert value(store, f"3.1-{OLD}") == 3 and value(store, f"4.1-{NEW}") == 40
    assert value(store, f"4.1-{OLD}") is None and value(store, f"7.1-{OLD}") is None


def test_what_is_no_version_is_left(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    foreign = tmp_path / "0" / "mine.safetensors"
    foreign.write_text("of another program")
    FileStore(tmp_path).save(0, "2.1", state(2), {""})
    assert foreign.exists()
