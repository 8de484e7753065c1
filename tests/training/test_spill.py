"""Client state over a limit of memory: the same bits from files, which end with it."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fedsuite.core.errors import RunError
from fedsuite.messages.records import Arrays
from fedsuite.running.worker import memory_store
from fedsuite.training import spill
from fedsuite.training.spill import SpillingMemory
from fedsuite.training.store import FileStore, MemoryStore
from tests.helpers import bits, digits_experiment, run_digits
from tests.training.test_store import files, state

SIZE = 32
"""Bytes of :func:`state`."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spilled"


def test_what_was_used_least_recently_goes_to_a_file(folder: Path) -> None:
    memory = SpillingMemory(folder, 2 * SIZE)
    for key in "abc":
        memory.put(key, state(ord(key)))
        assert memory.get("a") is not None
    assert memory.held == 2 * SIZE
    [path] = folder.iterdir()
    path.rename(folder / "elsewhere")
    assert bits(memory.get("a") or {}) == bits(state(ord("a")))
    assert bits(memory.get("c") or {}) == bits(state(ord("c")))
    with pytest.raises(RunError, match=r"cannot be read from .*safetensors") as caught:
        memory.get("b")
    assert "\n" not in str(caught.value)
    (folder / "elsewhere").rename(path)
    assert bits(memory.get("b") or {}) == bits(state(ord("b")))
    assert memory.held == 2 * SIZE, "what is read back pushes out nothing"
    assert memory.get("d") is None


def test_what_comes_back_is_what_went(folder: Path) -> None:
    """Types, shapes and order of names too, and nobody can write into it."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {
        "z": rng.normal(size=(3, 4)).astype(np.float32),
        "scalar": np.array(7, dtype=np.int64),
        "empty": np.zeros((0, 5)),
        "across": np.asfortranarray(rng.normal(size=(2, 3))),
        "a": np.array([True, False]),
        "nan": np.array([np.nan, -0.0, np.inf], dtype=np.float16),
    }
    memory = SpillingMemory(folder, 0)
    memory.put("first", arrays)
    memory.put("second", state(1))
    found = memory.get("first")
    assert found is not None
    assert list(found) == list(arrays)
    assert bits(found) == bits(arrays)
    assert [(a.dtype, a.shape) for a in found.values()] == [
        (a.dtype, a.shape) for a in arrays.values()
    ]
    assert not any(array.flags.writeable for array in found.values())


def test_files_end_when_nobody_needs_them(folder: Path) -> None:
    memory = SpillingMemory(folder, 0)
    for key in "abc":
        memory.put(key, state(1))
    assert len(list(folder.iterdir())) == 2
    memory.drop("a")
    memory.drop("never there")
    assert len(list(folder.iterdir())) == 1
    memory.put("b", state(2))
    assert bits(memory.get("b") or {}) == bits(state(2))
    assert len(list(folder.iterdir())) == 1, "of c, which b pushed out"
    del memory
    gc.collect()
    assert not folder.exists()
    assert folder.parent.exists()


def test_what_a_killed_process_left_is_deleted(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "0.safetensors").write_text("left over")
    memory = SpillingMemory(folder, 0)
    assert not folder.exists()
    assert memory.get(0) is None


def test_a_copy_of_the_process_deletes_nothing(folder: Path) -> None:
    memory = SpillingMemory(folder, 0)
    memory.put("a", state(1))
    memory.put("b", state(2))
    child = os.fork()
    if child == 0:
        del memory
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert bits(memory.get("a") or {}) == bits(state(1))


def test_nothing_is_lost_where_the_disk_is_full(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SpillingMemory(folder, SIZE)
    memory.put("a", state(1))
    full: Any = OSError(28, "No space left on device")

    def write_bytes(path: Path, data: bytes) -> int:
        path.write_text("torn")
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_bytes)
        with pytest.raises(RunError, match=r"cannot write .*: No space left") as caught:
            memory.put("b", state(2))
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []
    assert bits(memory.get("a") or {}) == bits(state(1))
    assert bits(memory.get("b") or {}) == bits(state(2))
    memory.put("c", state(3))
    assert memory.held == SIZE


def test_without_a_folder_nothing_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "safetensors_bytes", None)
    memory = SpillingMemory()
    for key in range(100):
        memory.put(key, state(key))
    assert memory.held == 100 * SIZE


# The store of the local engine


def test_a_checkpoint_takes_spilled_versions_and_a_resumed_run_finds_them(
    tmp_path: Path,
) -> None:
    store = MemoryStore(FileStore(tmp_path), SpillingMemory(tmp_path / "spilled", 0))
    for client_id in (0, 1, 2):
        store.save(client_id, "1.1", state(client_id), set())
    store.persist({0: "1.1", 2: "1.1"})
    spilled = {path for path in files(tmp_path) if path.startswith("spilled")}
    assert len(spilled) == 2
    assert files(tmp_path) - spilled == {"0/1.1.safetensors", "2/1.1.safetensors"}
    store.save(0, "2.1", state(9), {"1.1"})
    resumed = MemoryStore(FileStore(tmp_path), SpillingMemory(tmp_path / "spilled", 0))
    assert bits(resumed.load(0, "1.1")) == bits(state(0))
    for client_id, version in ((1, "1.1"), (0, "2.1")):
        with pytest.raises(RunError, match=f"client {client_id}: state {version} cannot"):
            resumed.load(client_id, version)


@pytest.mark.parametrize("method", ["standalone", "feddyn", "fedal"])
def test_a_run_has_the_same_bits_with_next_to_no_memory(method: str, folder: Path) -> None:
    public = {"public_size": 32} if method == "fedal" else {}
    experiment = digits_experiment(method=method, local_steps=2, **public)
    plain = MemoryStore()
    small = MemoryStore(None, SpillingMemory(folder, 0))
    expected, found = run_digits(experiment, plain), run_digits(experiment, small)
    assert len(list(folder.iterdir())) >= 3
    for round_expected, round_found in zip(expected.arrays, found.arrays, strict=True):
        assert bits(round_found) == bits(round_expected)
    for one, other in zip(expected.reports, found.reports, strict=True):
        assert [p.rows for p in one.phases] == [p.rows for p in other.phases]


def test_the_key_is_in_mebibytes(tmp_path: Path) -> None:
    store = memory_store(digits_experiment(client_memory=1), tmp_path)
    half = {"w": np.zeros(2**17, dtype=np.float32)}
    for client_id in range(3):
        store.save(client_id, "1.1", half, set())
    [path] = (tmp_path / "spilled").iterdir()
    assert path.stat().st_size > 2**19
    store.persist({0: "1.1"})
    assert (tmp_path / "0" / "1.1.safetensors").exists()


CLIENTS = st.integers(0, 2)
VERSIONS = st.sampled_from(["1.1", "1.2", "2.1", "3.1"])


class AnyUse(RuleBasedStateMachine):
    """A store with a limit does what one without does, files for checkpoints included."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        root = Path(self.temporary.name)
        self.folders = root / "plain", root / "small"
        self.spilled = root / "small" / "spilled"
        memory = SpillingMemory(self.spilled, 2 * SIZE)
        self.memory = memory
        self.stores = (
            MemoryStore(FileStore(self.folders[0])),
            MemoryStore(FileStore(self.folders[1]), memory),
        )
        self.values = 0

    def teardown(self) -> None:
        self.temporary.cleanup()

    @rule(client_id=CLIENTS, version=VERSIONS, needed=st.sets(VERSIONS))
    def save(self, client_id: int, version: str, needed: set[str]) -> None:
        self.values += 1
        for store in self.stores:
            store.save(client_id, version, state(self.values), needed)

    @rule(client_id=CLIENTS, version=VERSIONS)
    def load(self, client_id: int, version: str) -> None:
        found: list[dict[str, bytes] | None] = []
        for store in self.stores:
            try:
                found.append(bits(store.load(client_id, version)))
            except RunError:
                found.append(None)
        assert found[0] == found[1]

    @rule(versions=st.dictionaries(CLIENTS, VERSIONS), prunes=st.booleans())
    def checkpoint(self, versions: dict[int, str], prunes: bool) -> None:
        for store in self.stores:
            store.persist(versions)
            if prunes:
                store.prune(versions)

    @invariant()
    def files_are_those_that_checkpoints_need(self) -> None:
        plain, small = self.folders
        persisted = {path for path in files(small) if not path.startswith("spilled")}
        assert persisted == files(plain)
        for path in persisted:
            assert (plain / path).read_bytes() == (small / path).read_bytes()

    @invariant()
    def memory_has_a_bound_and_files_a_use(self) -> None:
        assert self.memory.held <= 2 * SIZE
        paths: Iterator[Path] = self.spilled.glob("*")
        known = sum(map(len, self.stores[1]._versions.values()))
        assert len(list(paths)) == known - self.memory.held // SIZE


AnyUse.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestAnyUse = AnyUse.TestCase
