"""Checkpoints: whole or refused, and resuming gives the bits of never having stopped."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedsuite.core.errors import RunError
from fedsuite.core.files import safetensors_arrays, safetensors_bytes
from fedsuite.engines.local import run_local
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.versions import exchange_of
from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import (
    EARLIER,
    FORMAT,
    Checkpoint,
    go_back_to,
    list_checkpoints,
    load_latest,
)
from fedsuite.rounds.events import RunState
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from tests.helpers import bits, digits_experiment


def example(server_round: int = 7, fingerprint: str = "print") -> Checkpoint:
    return Checkpoint(
        server_round=server_round,
        fingerprint=fingerprint,
        arrays={
            "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "a.counter": np.array(3, dtype=np.int64),
            "empty": np.zeros((0, 2), dtype=np.float16),
        },
        states={
            "method": {
                "arrays": {"z": np.full(2, 0.1), "a/b": np.zeros((0, 3))},
                "scalars": {"step": 3, "rate": 0.1, "name": "x", "many": [1.5, 2.5]},
            },
            "guard": {"update": 0.1 + 0.2},
            "layer": {},
            "fedvarp": {"total": {}, "updates": {"7": {"z": np.float32([3.0, -0.0])}}},
        },
        client_versions={0: "7.1", 12: "3.2"},
        history={
            "train_metrics_clientapp": {1: {"loss": 0.1 + 0.2}},
            "evaluate_metrics_clientapp": {},
            "evaluate_metrics_serverapp": {0: {"loss": 1.0}, 7: {"accuracy": 0.5}},
        },
        callbacks={
            "early-stop": [0.25, 3, 2],
            "best-model": {"best": [0.5], "model": {"w": np.float32([1.5, -0.0])}},
            "none": {},
        },
    )


def test_round_trip_of_everything(tmp_path: Path) -> None:
    path = example().save(tmp_path)
    assert path.name == "round-000007.safetensors"
    found, given = Checkpoint.load(path), example()
    for path in ("", "method/arrays", "fedvarp/updates/7"):
        mine, theirs = (one.states if path else one.arrays for one in (given, found))
        for name in filter(None, path.split("/")):
            mine, theirs = mine[name], theirs[name]
        assert list(mine) == list(theirs)
        assert bits(mine) == bits(theirs)
        assert [(a.dtype, a.shape) for a in mine.values()] == [
            (a.dtype, a.shape) for a in theirs.values()
        ]
    for name in (
        "server_round",
        "fingerprint",
        "client_versions",
        "history",
    ):
        assert getattr(found, name) == getattr(given, name)
    np.testing.assert_equal(found.states, given.states)
    np.testing.assert_equal(found.callbacks, given.callbacks)


def test_list_is_sorted_by_round_and_ignores_what_is_no_checkpoint(tmp_path: Path) -> None:
    for server_round in (1_000_001, 2, 30):
        example(server_round).save(tmp_path)
    for name in (".round-000099.safetensors.1-1.tmp", "round-9.safetensors", "notes.txt"):
        (tmp_path / name).touch()
    rounds = [Checkpoint.load(path).server_round for path in list_checkpoints(tmp_path)]
    assert rounds == [2, 30, 1_000_001]
    assert list_checkpoints(tmp_path / "nothing") == []
    assert load_latest(tmp_path / "nothing", "print") is None
    latest = load_latest(tmp_path, "print")
    assert latest is not None and latest.server_round == 1_000_001


def test_checkpoint_of_another_experiment(tmp_path: Path) -> None:
    example().save(tmp_path)
    with pytest.raises(RunError, match="belongs to another experiment: resume") as caught:
        load_latest(tmp_path, "other")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 5, 8, 60, 400, -1])
def test_torn_file(size: int, tmp_path: Path) -> None:
    path = example().save(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RunError, match=r"cannot read checkpoint .*round-000007") as caught:
        Checkpoint.load(path)
    assert "\n" not in str(caught.value)


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write a checkpoint again with other facts."""
    arrays, note = safetensors_arrays(path.read_bytes())
    path.write_bytes(safetensors_bytes(arrays, json.dumps(change(json.loads(note)))))


def test_rewriting_without_a_change_is_fine(tmp_path: Path) -> None:
    path = example().save(tmp_path)
    rewrite(path, lambda facts: facts)
    assert Checkpoint.load(path).server_round == 7


def test_other_format_is_named(tmp_path: Path) -> None:
    path = example().save(tmp_path)
    rewrite(path, lambda facts: facts | {"format": 99})
    words = (
        "has format 99, which a later fedsuite wrote and reads, and this version reads 6"
    )
    with pytest.raises(RunError, match=words):
        Checkpoint.load(path)


def test_every_earlier_format_says_which_version_reads_it(tmp_path: Path) -> None:
    """As they were: until the third, the text in the file had no hash."""
    assert list(EARLIER) == list(range(1, FORMAT))
    path = example().save(tmp_path)
    for number, version in EARLIER.items():
        text = json.dumps({"format": number, "round": 7, "fingerprint": "print"})
        if number < 3:
            save_file({"arrays/w": np.zeros(3)}, path, {"fedsuite": text})
        else:
            path.write_bytes(safetensors_bytes({"arrays/w": np.zeros(3)}, text))
        with pytest.raises(RunError) as caught:
            load_latest(tmp_path, "print")
        assert f"has format {number}, which fedsuite {version} wrote" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [0, -1, None, "6", 6.5, [6], True])
def test_a_format_that_is_none(number: object, tmp_path: Path) -> None:
    path = example().save(tmp_path)
    rewrite(path, lambda facts: facts | {"format": number})
    with pytest.raises(RunError, match="is none"):
        Checkpoint.load(path)


TAMPERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no-arrays": lambda facts: {k: v for k, v in facts.items() if k != "arrays"},
    "no-history": lambda facts: {k: v for k, v in facts.items() if k != "history"},
    "stolen-array": lambda facts: facts | {"arrays": ["stolen"]},
    "number-of-arrays": lambda facts: facts | {"arrays": 5},
    "list-of-versions": lambda facts: facts | {"client_versions": ["1.1"]},
    "named-client": lambda facts: facts | {"client_versions": {"first": "1.1"}},
    "list-of-histories": lambda facts: facts | {"history": []},
    "no-states": lambda facts: {k: v for k, v in facts.items() if k != "states"},
    "list-of-states": lambda facts: facts | {"states": []},
    "stolen-state": lambda facts: (
        facts | {"states": {"arrays": ["stolen"], "maps": {}, "values": {}}}
    ),
    "state-without-maps": lambda facts: facts | {"states": {"arrays": [], "values": {}}},
    "list": lambda facts: [],
    "text": lambda facts: "text",
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_file_is_one_line(name: str, tmp_path: Path) -> None:
    path = example().save(tmp_path)
    rewrite(path, TAMPERED[name])
    with pytest.raises(RunError, match="cannot read checkpoint") as caught:
        Checkpoint.load(path)
    assert "\n" not in str(caught.value)


def test_safetensors_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "round-000001.safetensors"
    save_file({"w": np.zeros(1)}, path)
    with pytest.raises(RunError, match="cannot read checkpoint"):
        Checkpoint.load(path)


def flip(path: Path, bit: int) -> None:
    """Turn one bit of a file, as a failing disk does."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_one_flipped_bit_is_seen_wherever_it_is(tmp_path: Path) -> None:
    path = example().save(tmp_path)
    for bit in range(0, 8 * path.stat().st_size, 29):
        flip(path, bit)
        with pytest.raises(RunError, match="cannot read checkpoint") as caught:
            Checkpoint.load(path)
        assert "\n" not in str(caught.value)
        flip(path, bit)
    assert Checkpoint.load(path).server_round == 7


def test_damaged_checkpoint_names_a_good_one_and_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "my run" / CHECKPOINTS
    folder.mkdir(parents=True)
    for server_round in (2, 4, 6):
        example(server_round).save(folder)
    paths = list_checkpoints(folder)
    flip(paths[2], 8 * paths[2].stat().st_size - 1)
    command = f"`fedsuite resume '{folder.parent}' --from-round 4`"
    with pytest.raises(RunError, match="its hash differs; round-000004") as caught:
        load_latest(folder, "print")
    assert command in str(caught.value)
    for path in paths[:2]:
        path.write_bytes(b"")
    with pytest.raises(RunError, match="no earlier checkpoint is good"):
        load_latest(folder, "print")


def test_going_back_keeps_the_later_ones_aside(tmp_path: Path) -> None:
    paths = [example(server_round).save(tmp_path) for server_round in (2, 4, 6)]
    with pytest.raises(RunError, match="no checkpoint of round 3: it has those of 2, 4, 6"):
        go_back_to(tmp_path, 3)
    damaged = paths[0].read_bytes()
    paths[0].write_bytes(damaged[:-1])
    with pytest.raises(RunError, match="cannot read checkpoint"):
        go_back_to(tmp_path, 2)
    assert list_checkpoints(tmp_path) == paths
    go_back_to(tmp_path, 4)
    assert list_checkpoints(tmp_path) == paths[:2]
    assert paths[2].with_name(paths[2].name + ".aside").exists()


# Resuming whole runs

OPTIONS: dict[str, Any] = {"num_rounds": 6, "clients_per_round": 3, "checkpoint_every": 2}
OPTIONS |= {"local_steps": 2}


def run_folder(folder: Path, **changes: Any) -> dict[str, bytes]:
    if changes.get("method") == "standalone":
        changes["clients_per_round"] = 0
    result = run_local(digits_experiment(**OPTIONS | changes), folder).result
    return bits(to_arrays(result.arrays))


@contextmanager
def dying(owner: type, method: str, server_round: int) -> Iterator[None]:
    """Make a run die where it calls a method for the given round."""
    original = getattr(owner, method)

    def die(self: Any, *arguments: Any) -> Any:
        current = self.server_round if isinstance(self, Checkpoint) else arguments[0]
        if current == server_round:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, method, die)
        yield


def without_times(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


@pytest.mark.parametrize(
    "method", ["fedavg", "standalone", "scaffold", "feddyn", "feddc", "ditto"]
)
def test_resuming_gives_the_bits_of_never_stopping(method: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    expected = run_folder(whole, method=method)
    states = kept_states(whole)
    assert bool(states) == (method != "fedavg")
    rows = (whole / "clients.jsonl").read_bytes()
    deaths = (2, "aggregate_train"), (4, "aggregate_evaluate"), (5, "aggregate_train")
    for stop, where in deaths:
        torn = tmp_path / f"torn-{stop}"
        with dying(FederatedStrategy, where, stop):
            run_folder(torn, method=method)
        assert run_folder(torn, method=method, resume=True) == expected, stop
        assert without_times(torn) == without_times(whole), stop
        assert (torn / "clients.jsonl").read_bytes() == rows, stop
        assert kept_states(torn) == states, stop


def kept_states(folder: Path) -> dict[tuple[str, str], bytes]:
    """Return what clients keep, by client and version, whatever attempt made it."""
    files = (folder / "state").rglob("*.safetensors")
    return {(f.parent.name, exchange_of(f.stem)): f.read_bytes() for f in files}


def test_history_of_a_resumed_run_is_whole(tmp_path: Path) -> None:
    whole = run_local(digits_experiment(**OPTIONS), tmp_path / "whole").result
    run_folder(tmp_path / "part", num_rounds=2)
    changes = OPTIONS | {"num_rounds": 6, "resume": True}
    part = run_local(digits_experiment(**changes), tmp_path / "part").result
    assert part.train_metrics_clientapp == whole.train_metrics_clientapp
    assert part.evaluate_metrics_clientapp == whole.evaluate_metrics_clientapp
    assert sorted(part.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]


def test_crash_between_client_states_and_checkpoint(tmp_path: Path) -> None:
    """The states of the last checkpoint must still be there."""
    expected = run_folder(tmp_path / "whole", method="standalone")
    kept = kept_states(tmp_path / "whole")
    with dying(Checkpoint, "save", 4):
        run_folder(tmp_path / "torn", method="standalone")
    assert run_folder(tmp_path / "torn", method="standalone", resume=True) == expected
    assert kept_states(tmp_path / "torn") == kept


def test_only_the_newest_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", num_rounds=7)
    names = [path.name for path in list_checkpoints(tmp_path / "run" / CHECKPOINTS)]
    assert names == ["round-000006.safetensors", "round-000007.safetensors"]


def test_no_checkpoints_where_none_are_asked_for(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", num_rounds=2, checkpoint_every=0)
    assert list_checkpoints(tmp_path / "run" / CHECKPOINTS) == []


def test_resuming_another_experiment_changes_nothing(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", num_rounds=2)
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    with pytest.raises(RunError, match="belongs to another experiment"):
        run_folder(tmp_path / "run", resume=True, seed=1)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "states", [{}, {"method": {}}, {"method": {"arrays": {}, "scalars": {}}, "guard": 5}]
)
def test_a_checkpoint_of_other_states_is_refused_in_one_line(states: Any) -> None:
    strategy = FedAvg()
    state = RunState(strategy, Any, 3, to_record({}))
    with pytest.raises(
        RunError, match="of round 7 does not hold what FedAvg rem"
    ) as caught:
        replace(example(), states=states).restore(state)
    assert "\n" not in str(caught.value)
