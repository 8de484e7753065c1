"""Judges seeds: plays, checks, compares with the undisturbed run, shrinks, and counts."""

import argparse
import hashlib
import json
import logging
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from fedsuite.results.layout import TABLES
from fedsuite.training.app import source_hash
from tests.disasters.checker import UNREADABLE, problems
from tests.disasters.play import Played, play, undisturbed
from tests.disasters.remembered import CALM
from tests.disasters.world import (
    DEATHS,
    LINK_TARGETS,
    SECURE_TARGETS,
    STEADY,
    TARGETS,
    Plan,
)
from tests.faults.runs import Outcome, outcome

CORPUS = Path(__file__).parent / "corpus"

LOT = 100
"""Seeds that are played, and noted, together."""

_MOVES_TIME = {
    "leave",
    "link-back",
    "twice-request",
    "late",
    "reorder",
    "lost-state",
    "old-state",
}
"""After these a server that comes later meets another world."""

NO_MESSAGES = DEATHS | STEADY | {"full", "eio", "flip", "link-anew"}
"""What may not change a bit of a run that goes on."""


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
    # Reasons name nodes, which have other ids.
    if "link-anew" in kinds and any(map(is_message_place, fired)):
        return False
    # Who says hello again does so at another place.
    if any(place.startswith("query.hello") for place in fired):
        return False
    # Nobody sees a digit that changed in a table; a client's lost state is told and stays.
    unseen = {f"rest:{file}" for file in (*TABLES, "summary", "state")}
    if unseen & {place_class(p) for p, kind in fired.items() if kind == "flip"}:
        return False
    return bool(kinds & NO_MESSAGES)


def _differences(played: Played) -> Iterator[str]:
    plan = undisturbed(played, NO_MESSAGES)
    if not plan.faults:
        # How long messages take changes no bit, so worlds without faults are alike.
        plan = replace(plan, seed=0, fresh=False, rates={}, aims=())
    two = CALM.get(repr(plan)) or CALM.keep(repr(plan), _calm_outcome(plan))
    if isinstance(two, str):
        return
    one = outcome(played.folder)
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


def _calm_outcome(plan: Plan) -> Outcome | str:
    """Return what a world without deaths leaves, or why it leaves nothing."""
    with _folder() as root:
        calm = play(plan, root)
        if calm.stops or calm.crash:
            return "stopped"
        return outcome(calm.folder)


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


def coverage(fired: Counter[tuple[str, str]], targets: Collection[tuple[str, str]]) -> str:
    """Return a table of kinds of faults, with the kinds of places where none fired."""
    lines = ["| fault | fired | places | never fired at |", "| --- | --- | --- | --- |"]
    for kind in sorted({kind for kind, _ in targets}):
        places = sorted(where for one, where in targets if one == kind)
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
    parser.add_argument("--seed", type=int, help="one seed, told in full")
    parser.add_argument("--write", action="store_true", help="add failures to the corpus")
    parser.add_argument("--processes", type=int, default=1, help="how many share the seeds")
    parser.add_argument(
        "--progress", type=Path, help="file of the seeds that were played, to go on from"
    )
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        plan = Plan.drawn(given.seed)
        verdict = judge(plan)
        print(plan, verdict, sep="\n")
        return int(bool(verdict.problems))
    progress = Progress(given.progress)
    with suppress(KeyboardInterrupt):
        play_night(progress, given.first, given.seeds, given.processes, given.write)
    progress.tell()
    return int(any(lot.failed for lot in progress.lots))


@dataclass(frozen=True)
class Lot:
    """Seeds in a row that were played, what fired, and what failed.

    Parameters
    ----------
    first, seeds
        The first seed, and how many.
    compared
        How many were compared bit for bit.
    fired
        Kind of a fault and of its place, with a space between, to how often it fired.
    failed
        Seed to its first problem.
    seconds
        Of the processor.
    code
        Hash of the code that was played.
    """

    first: int
    seeds: int
    compared: int
    fired: dict[str, int]
    failed: dict[str, str]
    seconds: float
    code: str


def play_lot(first: int, seeds: int) -> Lot:
    """Play seeds in a row."""
    logging.disable(logging.CRITICAL)
    began, compared = time.process_time(), 0
    fired: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for seed in range(first, first + seeds):
        verdict = judge(Plan.drawn(seed))
        compared += verdict.compared
        fired.update(f"{k} {place_class(p)}" for p, k in verdict.fired.items())
        if verdict.problems:
            failed[str(seed)] = verdict.problems[0]
    seconds = time.process_time() - began
    return Lot(first, seeds, compared, dict(fired), failed, seconds, _code())


def play_night(
    progress: "Progress", first: int, seeds: int, processes: int, writes: bool
) -> None:
    """Play the seeds that are not in the progress; of each kind shrink two failures."""
    done = {lot.first for lot in progress.lots}
    starts = range(first, first + seeds, LOT)
    lots = [(n, min(LOT, first + seeds - n)) for n in starts if n not in done]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(play_lot, *lot) for lot in lots]
        try:
            for future in as_completed(futures):
                lot = future.result()
                known = Counter(
                    kind_of(words) for old in progress.lots for words in old.failed.values()
                )
                progress.add(lot)
                for seed, words in lot.failed.items():
                    known[kind_of(words)] += 1
                    if known[kind_of(words)] <= 2:
                        _tell_failure(int(seed), writes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _tell_failure(seed: int, writes: bool) -> None:
    plan = Plan.drawn(seed)
    verdict = judge(plan)
    if not verdict.problems:
        print(f"seed {seed} fails after its forerunners alone", flush=True)
        return
    print(f"seed {seed} [{plan.method}] {verdict.problems[0][:300]}", flush=True)
    fewest = shrunk(plan, verdict)
    print(f"  fewest: {json.dumps(asdict(fewest))}", flush=True)
    if writes:
        print(f"  written: {write_plan(fewest, f'seed-{seed}')}", flush=True)


class Progress:
    """Lots that were played, a line each in a file, so that a stopped night goes on.

    Parameters
    ----------
    path
        The file; None keeps nothing. Lots of other code, and half a line, do not count.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.code = _code()
        self.lots: list[Lot] = []
        lines = path.read_text().splitlines() if path and path.exists() else []
        for line in lines:
            with suppress(ValueError, TypeError):
                lot = Lot(**json.loads(line))
                if lot.code == self.code:
                    self.lots.append(lot)

    def add(self, lot: Lot) -> None:
        """Note a lot, and say how far the night is."""
        self.lots.append(lot)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                # A night that was killed may have left half a line.
                file.write(f"\n{json.dumps(asdict(lot))}\n")
        print(f"{sum(lot.seeds for lot in self.lots)} seeds", flush=True)

    def tell(self) -> None:
        """Print the time, the coverage and all kinds of failures."""
        seeds = sum(lot.seeds for lot in self.lots)
        seconds = sum(lot.seconds for lot in self.lots)
        compared = sum(lot.compared for lot in self.lots)
        rate = 60 * seeds / seconds if seconds else 0.0
        print(f"{seeds} seeds, {compared} of them compared bit for bit")
        print(f"{seconds / 3600:.2f} hours of a processor, {rate:.0f} seeds a minute")
        fired: Counter[tuple[str, str]] = Counter()
        failed: dict[str, list[int]] = defaultdict(list)
        for lot in self.lots:
            for pair, count in lot.fired.items():
                kind, _, place = pair.partition(" ")
                fired[kind, place] += count
            for seed, words in lot.failed.items():
                failed[kind_of(words)].append(int(seed))
        print(coverage(fired, {*TARGETS, *SECURE_TARGETS, *LINK_TARGETS}))
        for kind, numbers in sorted(failed.items()):
            print(f"{len(numbers):5d} {kind}: seeds {sorted(numbers)[:8]}")


@cache
def _code() -> str:
    """Return a hash of what is played: fedsuite and this world."""
    digest = hashlib.sha256(source_hash().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
