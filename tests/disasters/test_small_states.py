"""Machines that take any steps in any order where the state is small: stores, ledger."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedsuite.core.errors import RunError
from fedsuite.messages.versions import version_name
from fedsuite.rounds.release_ledger import ReleaseLedger
from fedsuite.training.store import ClientStore, FileStore, MemoryStore
from tests.disasters.planted import BUGS, planted

QUICK = settings(
    max_examples=25,
    stateful_step_count=12,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    # A machine of few steps is short enough to read.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

_ORDERS = st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(1, 2))
"""Attempt, round and exchange that name a version, in the order of their making."""


class _Folder(RuleBasedStateMachine):
    """A machine with a folder of its own."""

    def __init__(self) -> None:
        super().__init__()
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


class Versions(_Folder):
    """A store keeps what is needed and what is newer, whenever a message comes."""

    @initialize(in_files=st.booleans())
    def begin(self, in_files: bool) -> None:
        self.store: ClientStore = FileStore(self.folder) if in_files else MemoryStore()
        self.kept: dict[tuple[int, int, int], float] = {}
        self.written = 0

    @rule(order=_ORDERS, needed=st.sets(_ORDERS, max_size=2))
    def save(self, order: tuple[int, int, int], needed: set[tuple[int, int, int]]) -> None:
        self.written += 1
        arrays = {"w": np.full(2, float(self.written))}
        self.store.save(3, _name(order), arrays, {*map(_name, needed), ""})
        self.kept = {o: v for o, v in self.kept.items() if o > order or o in needed}
        self.kept[order] = float(self.written)

    @rule(order=_ORDERS)
    def load(self, order: tuple[int, int, int]) -> None:
        if order in self.kept:
            assert self.store.load(3, _name(order))["w"].tolist() == [self.kept[order]] * 2
            return
        with pytest.raises(RunError):
            self.store.load(3, _name(order))

    @invariant()
    def all_that_is_kept_is_there(self) -> None:
        for order in getattr(self, "kept", ()):
            self.load(order)


class Releases(_Folder):
    """A ledger counts each release once, whoever died and whatever was damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.path = self.folder / "privacy.ledger"
        self.ledger = ReleaseLedger(self.path)
        self.groups: list[int] = []

    @rule(group=st.integers(0, 2))
    def add(self, group: int) -> None:
        self.ledger.add(group, {"sentence": "noised"})
        self.groups.append(group)

    @rule()
    def die_and_go_on(self) -> None:
        counts = dict(self.ledger.counts)
        self.ledger = ReleaseLedger(self.path)
        self.ledger.recall(counts)

    @precondition(lambda self: self.groups)
    @rule(place=st.integers(0, 10**6), bit=st.integers(0, 7))
    def damage(self, place: int, bit: int) -> None:
        whole = self.path.read_bytes()
        data = bytearray(whole)
        data[place % len(data)] ^= 1 << bit
        self.path.write_bytes(data)
        if data.decode(errors="replace").splitlines() != whole.decode().splitlines():
            with pytest.raises(RunError, match="put back"):
                ReleaseLedger(self.path)
        self.path.write_bytes(whole)

    @precondition(lambda self: self.groups)
    @rule(lines=st.integers(1, 3))
    def lose_lines(self, lines: int) -> None:
        whole = self.path.read_text()
        self.path.write_text("".join(whole.splitlines(keepends=True)[:-lines]))
        with pytest.raises(RunError, match="put back"):
            ReleaseLedger(self.path).recall(self.ledger.counts)
        self.path.write_text(whole)

    @invariant()
    def each_release_counts_once(self) -> None:
        assert self.ledger.counts == Counter(self.groups)
        assert self.ledger.last.get("release", 0) == len(self.groups)


def _name(order: tuple[int, int, int]) -> str:
    attempt, server_round, exchange = order
    return version_name(server_round, exchange, attempt)


def test_versions() -> None:
    run_state_machine_as_test(Versions, settings=QUICK)


def test_releases() -> None:
    run_state_machine_as_test(Releases, settings=QUICK)


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("a file store drops newer versions", Versions),
        ("a store in memory drops all that a message does not need", Versions),
        ("the ledger begins anew with each server", Releases),
        ("a damaged entry of the ledger counts", Releases),
    ],
)
def test_a_machine_sees_what_is_planted(name: str, machine: type[_Folder]) -> None:
    (bug,) = (bug for bug in BUGS if bug.name == name)
    with planted(bug), pytest.raises((AssertionError, RunError, pytest.fail.Exception)):
        run_state_machine_as_test(machine, settings=QUICK)
