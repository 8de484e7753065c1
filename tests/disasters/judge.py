"""Judges seeds: plays, checks, compares with the undisturbed run, shrinks, and counts."""

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedsuite.results.layout import TABLES
from tests.disasters.checker import UNREADABLE, problems
from tests.disasters.play import Played, play, undisturbed
from tests.disasters.world import DEATHS, STEADY, TARGETS, Plan
from tests.faults.runs import outcome

CORPUS = Path(__file__).parent / "corpus"

_MOVES_TIME = {"leave", "twice-request", "late", "reorder", "lost-state", "old-state"}
"""After these a server that comes later meets another world."""


@dataclass(frozen=True)
class Verdict:
    """What became of a plan."""

    fired: dict[str, str]
    problems: list[str]
    compared: bool = False


def judge(plan: Plan) -> Verdict:
    """Play a plan and return what was wrong."""
    with _folder() as root:
        played = play(plan, root)
        wrong = problems(played)
        compared = not wrong and _is_comparable(played)
        try:
            wrong += _differences(played) if compared else ()
        except UNREADABLE as error:
            wrong = [f"unreadable: {error}"]
        return Verdict(played.world.fired, wrong, compared)


def _is_comparable(played: Played) -> bool:
    """Return whether the same world without deaths must leave the same bits."""
    fired, plan = played.world.fired, played.world.plan
    kinds = set(fired.values())
    if plan.method in ("fedbuff-real", "noise") or kinds & _MOVES_TIME:
        return False
    # A fresh world that plays again meets other faults of messages.
    if played.world.calm or (plan.fresh and any(map(is_message_place, fired))):
        return False
    # Who says hello again does so at another place.
    if any(place.startswith("query.hello") for place in fired):
        return False
    # Nobody sees a digit that changed in a table; a client's lost state is told and stays.
    unseen = {f"rest:{file}" for file in (*TABLES, "summary", "state")}
    if unseen & {place_class(p) for p, kind in fired.items() if kind == "flip"}:
        return False
    return bool(kinds & (DEATHS | STEADY | {"full", "eio", "flip"}))


def _differences(played: Played) -> Iterator[str]:
    kinds = DEATHS | STEADY | {"full", "eio", "flip"}
    with _folder() as root:
        calm = play(undisturbed(played, frozenset(kinds)), root)
        if calm.stops or calm.crash:
            return
        one, two = outcome(played.folder), outcome(calm.folder)
        for part in vars(one):
            if part == "states":
                # More may lie there: a deletion is lost with the power.
                if not one.states.items() >= two.states.items():
                    yield "bits: states differs from the run without the deaths"
                continue
            if part == "checkpoint" and getattr(one, part) != getattr(two, part):
                first, second = one.checkpoint, two.checkpoint
                names = [n for n in first if first[n] != second[n]]
                yield f"bits: checkpoint differs in {names}"
            elif getattr(one, part) != getattr(two, part):
                yield f"bits: {part} differs from the run without the deaths"


@contextmanager
def _folder() -> Iterator[Path]:
    shared = Path("/dev/shm")
    root = tempfile.mkdtemp(dir=shared if shared.is_dir() else None)
    try:
        yield Path(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def kind_of(problem: str) -> str:
    """Return the kind of a problem, by which failures are alike."""
    head, _, tail = problem.partition(":")
    more = head in ("crash", "bits", "stop")
    return (
        f"{head}: {' '.join(tail.split()[: 3 if head == 'stop' else 1])}" if more else head
    )


def shrunk(plan: Plan, verdict: Verdict) -> Plan:
    """Return the plan with the fewest faults that fails alike."""
    kind = kind_of(verdict.problems[0])
    faults = dict(verdict.fired)

    def fails(fewer: dict[str, str]) -> bool:
        again = judge(replace(plan, faults=fewer))
        return any(kind_of(problem) == kind for problem in again.problems)

    if not fails(faults):
        return replace(plan, faults=faults)
    for place in list(faults):
        fewer = {p: k for p, k in faults.items() if p != place}
        if fails(fewer):
            faults = fewer
    return replace(plan, faults=faults, rates={}, aims=())


def write_plan(plan: Plan, name: str, folder: Path = CORPUS) -> Path:
    """Write a plan as a test of the corpus; return its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(asdict(plan), indent=1) + "\n")
    return path


def read_plan(path: Path) -> Plan:
    """Read a plan of the corpus."""
    return Plan(**json.loads(path.read_text()))


def is_message_place(place: str) -> bool:
    """Return whether a place is a message's, and not the process's or a file's."""
    return ":" not in place_class(place)


def place_class(place: str) -> str:
    """Return the kind of a place, as in :data:`TARGETS`."""
    return place.partition(" ")[0]


def coverage(fired: Counter[tuple[str, str]]) -> str:
    """Return a table of kinds of faults, with the kinds of places where none fired."""
    lines = ["| fault | fired | places | never fired at |", "| --- | --- | --- | --- |"]
    for kind in sorted({kind for kind, _ in TARGETS}):
        places = sorted(where for one, where in TARGETS if one == kind)
        never = [where for where in places if not fired[kind, where]]
        total = sum(count for (one, _), count in fired.items() if one == kind)
        missing = ", ".join(never) or "-"
        reached = f"{len(places) - len(never)} of {len(places)}"
        lines.append(f"| {kind} | {total} | {reached} | {missing} |")
    return "\n".join(lines)


def main() -> int:
    """Play seeds; print failures, the fewest faults of each, and the coverage."""
    parser = argparse.ArgumentParser(prog="python -m tests.disasters.judge")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many")
    parser.add_argument("--seed", type=int, help="one seed, told in full")
    parser.add_argument("--write", action="store_true", help="add failures to the corpus")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        plan = Plan.drawn(given.seed)
        verdict = judge(plan)
        print(plan, verdict, sep="\n")
        return int(bool(verdict.problems))
    tally = Tally(given.write)
    began = time.monotonic()
    with suppress(KeyboardInterrupt):
        for seed in range(given.first, given.first + given.seeds):
            if given.minutes and time.monotonic() - began > 60 * given.minutes:
                break
            tally.add(seed)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    tally.tell()
    return int(bool(tally.failed))


class Tally:
    """Seeds that were played, what fired, and what failed.

    Parameters
    ----------
    writes
        Whether failures go into the corpus.
    """

    def __init__(self, writes: bool = False) -> None:
        self.failed: dict[str, list[int]] = defaultdict(list)
        self._writes = writes
        self._fired: Counter[tuple[str, str]] = Counter()
        self._played = self._compared = 0

    def add(self, seed: int) -> None:
        """Play a seed, and tell its failure; of each kind the first two are shrunk."""
        plan = Plan.drawn(seed)
        verdict = judge(plan)
        self._played += 1
        self._compared += verdict.compared
        places = ((kind, place_class(place)) for place, kind in verdict.fired.items())
        self._fired.update(places)
        if self._played % 100 == 0:
            print(f"{self._played} seeds", flush=True)
        if not verdict.problems:
            return
        seeds = self.failed[kind_of(verdict.problems[0])]
        seeds.append(seed)
        if len(seeds) > 2:
            return
        print(f"seed {seed} [{plan.method}] {verdict.problems[0][:300]}", flush=True)
        fewest = shrunk(plan, verdict)
        print(f"  fewest: {json.dumps(asdict(fewest))}", flush=True)
        if self._writes:
            print(f"  written: {write_plan(fewest, f'seed-{seed}')}")

    def tell(self) -> None:
        """Print the coverage and all kinds of failures."""
        print(f"{self._played} seeds, {self._compared} of them compared bit for bit")
        print(coverage(self._fired))
        for kind, seeds in sorted(self.failed.items()):
            print(f"{len(seeds):5d} {kind}: seeds {seeds[:8]}")


if __name__ == "__main__":
    sys.exit(main())
