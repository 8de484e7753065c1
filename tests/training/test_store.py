"""Versions of clients' state: immutable, pruned, and safe to name and to lose."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.core.errors import RunError
from fedsuite.messages.records import Arrays, Request
from fedsuite.training.spill import SpillingMemory
from fedsuite.training.store import ClientStore, FileStore, MemoryStore
from tests.helpers import FULL_STEP, Matrix, MatrixStandaloneClient, bits, samples


def state(value: float) -> Arrays:
    counter = np.array(int(value), dtype=np.int64)
    return {"w": np.full((2, 3), value, dtype=np.float32), "counter": counter}


@pytest.fixture(params=["files", "memory", "memory-and-files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ClientStore:
    files = FileStore(tmp_path / "state")
    if request.param == "files":
        return files
    return MemoryStore(files if request.param == "memory-and-files" else None)


def held(store: ClientStore, client_id: int) -> set[str]:
    found = set()
    for version in (f"{r}.{e}" for r in range(9) for e in range(1, 3)):
        try:
            store.load(client_id, version)
            found.add(version)
        except RunError:
            pass
    return found


def test_round_trip(store: ClientStore) -> None:
    store.save(3, "1.1", state(1.5), set())
    found = store.load(3, "1.1")
    assert bits(found) == bits(state(1.5))
    assert {n: (a.dtype, a.shape) for n, a in found.items()} == {
        n: (a.dtype, a.shape) for n, a in state(1.5).items()
    }
    assert list(found) == list(state(0)) or isinstance(store, FileStore)


def test_pruning_keeps_start_keep_and_new(store: ClientStore) -> None:
    for index in range(1, 6):
        store.save(0, f"{index}.1", state(index), {f"{i}.1" for i in range(1, index)})
    store.save(1, "1.1", state(0), set())
    store.save(0, "6.1", state(6), {"5.1", "2.1"})
    assert held(store, 0) == {"2.1", "5.1", "6.1"}
    assert held(store, 1) == {"1.1"}, "another client's versions are not touched"
    store.save(0, "7.1", state(7), {""})
    assert held(store, 0) == {"7.1"}


def test_versions_are_immutable(store: ClientStore) -> None:
    mine = state(1.0)
    store.save(0, "1.1", mine, set())
    mine["w"][:] = 9.0
    found = store.load(0, "1.1")
    assert found["w"][0, 0] == 1.0
    with suppress(ValueError):
        found["w"][:] = 7.0
    assert store.load(0, "1.1")["w"][0, 0] == 1.0


def test_missing_version_is_one_line(store: ClientStore) -> None:
    with pytest.raises(RunError, match=r"client 4: .*2\.1") as caught:
        store.load(4, "2.1")
    assert "\n" not in str(caught.value)


BAD_NAMES = [
    "",
    "1",
    "../1.1",
    "1.1/..",
    "/etc/passwd",
    "1.1\n",
    "a.b",
    "1.1.1",
    "-1.1",
    "1" * 12,
]


@pytest.mark.parametrize("version", BAD_NAMES)
def test_names_that_are_no_versions_are_refused(version: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "state")
    with pytest.raises(
        RunError, match=r"client 0: .* is no version of its state"
    ) as caught:
        store.save(0, version, state(0), set())
    assert "\n" not in str(caught.value)
    with pytest.raises(RunError):
        store.load(0, version)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 4, 60, -1])
def test_torn_file_is_one_line(size: int, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.save(0, "1.1", state(1), set())
    path = store.path(0, "1.1")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RunError, match=r"client 0: state 1\.1 cannot be read") as caught:
        store.load(0, "1.1")
    assert "\n" not in str(caught.value)


def test_flipped_bit_is_one_line(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.save(0, "1.1", state(1), set())
    path = store.path(0, "1.1")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"its hash differs\): .*--from-round"):
        store.load(0, "1.1")


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(RunError, match=r"cannot write .*state: File exists") as caught:
        FileStore(tmp_path / "state").save(0, "1.1", state(0), set())
    assert "\n" not in str(caught.value)


# What a checkpoint needs


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.safetensors")}


def test_memory_writes_only_what_a_checkpoint_needs(tmp_path: Path) -> None:
    store = MemoryStore(FileStore(tmp_path))
    for version in ("1.1", "2.1"):
        for client_id in (0, 1):
            store.save(client_id, version, state(client_id), {"1.1"})
    assert files(tmp_path) == set()
    store.persist({0: "2.1"})
    assert files(tmp_path) == {"0/2.1.safetensors"}
    resumed = MemoryStore(FileStore(tmp_path))
    assert bits(resumed.load(0, "2.1")) == bits(state(0))
    with pytest.raises(RunError):
        resumed.load(1, "2.1")


def test_last_checkpoints_versions_stay_until_the_next_one_stands(tmp_path: Path) -> None:
    """A crash between the two must leave a state to resume from."""
    store = MemoryStore(FileStore(tmp_path))
    store.save(0, "1.1", state(1), set())
    store.persist({0: "1.1"})
    store.save(0, "2.1", state(2), {"1.1"})
    store.persist({0: "2.1"})
    assert files(tmp_path) == {"0/1.1.safetensors", "0/2.1.safetensors"}
    store.prune({0: "2.1"})
    assert files(tmp_path) == {"0/2.1.safetensors"}


def test_versions_of_two_checkpoints_stay_the_older_in_files_alone(tmp_path: Path) -> None:
    memory = SpillingMemory()
    store = MemoryStore(FileStore(tmp_path), memory)
    for version in ("1.1", "2.1", "3.1"):
        store.save(0, version, state(float(version)), {"1.1", "2.1"})
        store.persist({0: version})
    store.prune({0: "2.1,3.1"})
    assert files(tmp_path) == {"0/2.1.safetensors", "0/3.1.safetensors"}
    assert memory.get((0, "2.1")) is None
    assert memory.get((0, "3.1")) is not None
    assert bits(store.load(0, "2.1")) == bits(state(2.1))


def test_pruning_deletes_whatever_was_written_since(tmp_path: Path) -> None:
    store = MemoryStore(FileStore(tmp_path))
    store.save(0, "1.1", state(1), set())
    store.persist({0: "1.1"})
    store.prune({0: "1.1"})
    store.save(0, "2.1", state(2), {"1.1"})
    store.persist({0: "2.1"})
    store.prune({0: "1.1"})
    assert files(tmp_path) == {"0/1.1.safetensors"}


def test_file_of_another_run_is_replaced(tmp_path: Path) -> None:
    """What an older run of the same name left must not be taken for ours."""
    FileStore(tmp_path).save(0, "1.1", state(9), set())
    store = MemoryStore(FileStore(tmp_path))
    store.save(0, "1.1", state(1), set())
    store.persist({0: "1.1"})
    assert bits(FileStore(tmp_path).load(0, "1.1")) == bits(state(1))


def test_a_version_that_only_files_hold_is_not_written_again(tmp_path: Path) -> None:
    FileStore(tmp_path).save(0, "1.1", state(1), set())
    store = MemoryStore(FileStore(tmp_path))
    store.persist({0: "1.1"})
    assert bits(store.load(0, "1.1")) == bits(state(1))


def test_repeated_message_gives_the_same_reply_and_the_same_version(
    store: ClientStore,
) -> None:
    def client() -> StandaloneClient:
        data = samples(4.0, 1)
        half = replace(FULL_STEP, learning_rate=0.5)
        return MatrixStandaloneClient(Matrix(), data, data, training=half, store=store)

    def ask(start: str, new: str) -> float:
        request = Request("train", 0, start_version=start, new_version=new)
        loss = client().on_train(request).metrics["loss"]
        assert isinstance(loss, float)
        return loss

    assert ask("", "1.1") == 32.0
    assert ask("1.1", "2.1") == 8.0
    assert ask("1.1", "2.1") == 8.0
    assert store.load(0, "2.1")["weight"][0, 0] == 3.0
    assert ask("1.1", "3.1") == 8.0, "a reply that was lost changes nothing"
    assert ask("3.1", "4.1") == 2.0


def test_client_keeps_the_version_that_the_last_checkpoint_needs(
    store: ClientStore,
) -> None:
    data = samples(4.0, 1)
    client = MatrixStandaloneClient(Matrix(), data, data, training=FULL_STEP, store=store)
    rounds = [("", "", "1.1"), ("1.1", "1.1", "2.1"), ("2.1", "1.1", "3.1")]
    for start, keep, new in rounds:
        request = Request(
            "train", 0, start_version=start, keep_version=keep, new_version=new
        )
        client.on_train(request)
    assert held(store, 0) == {"1.1", "2.1", "3.1"}
    client.on_train(
        Request("train", 0, start_version="3.1", keep_version="3.1", new_version="4.1")
    )
    assert held(store, 0) == {"3.1", "4.1"}


def test_memory_shares_what_nobody_can_write_and_copies_the_rest() -> None:
    store = MemoryStore()
    shared, own = np.zeros(2), np.zeros(2)
    shared.flags.writeable = False
    store.save(0, "1.1", {"shared": shared, "own": own}, set())
    own[:] = 5
    found = store.load(0, "1.1")
    assert found["shared"] is shared
    assert found["own"].tolist() == [0, 0]
    assert not found["own"].flags.writeable
