"""A smaller world: real processes of ``deploy``, under schedules of the same kind.

    python -m tests.disasters.processes --seed 17
    python -m tests.disasters.processes --first 0 --seeds 60

The moments of real processes are not a seed's to choose; places and kinds of faults are. So
each fault stands at a named place: a program's N-th start, a call of a message, a moment of
the relay. One that is left out leaves the others where they were.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from fedsuite.deploy.folders import NODES, init_federation
from fedsuite.deploy.relay.policy import default_text
from fedsuite.engines.processes import stop_signals_raise
from tests.disasters import relayed, watched
from tests.disasters.forked import Schedule
from tests.disasters.judge import coverage
from tests.disasters.stand_ins import events

WORLDS = ("pair", "relay", "alone", "relay", "own-folder", "relay")


def _disorder(targets: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return targets shuffled, in each process alike."""
    shuffled = list(targets)
    random.Random("targets of processes").shuffle(shuffled)
    return shuffled


_WATCHED = _disorder(
    (kind, name) for kind in dict.fromkeys(watched.KINDS) for name in watched.NAMES
)
_RELAYED = _disorder(
    (
        *((kind, call) for kind in relayed.LINE_KINDS for call in relayed.CALLS),
        *((kind, moment) for kind in ("kill", "term", "int") for moment in relayed.MOMENTS),
        *(
            (kind, f"ledger:{line}")
            for kind in relayed.DISK_KINDS
            for line in ("request", "reply", "error", "sent", "refused")
        ),
    )
)
TARGETS = (*_WATCHED, *_RELAYED)
"""Kinds of faults and of places: the coverage is of these, and each seed aims at one."""


def drawn(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    rng = random.Random(f"processes {seed}")
    world = WORLDS[seed % len(WORLDS)]
    last = rng.choice(["term", "term", "int", "kill", "hup"])
    faults: dict[str, str] = {}
    if world != "relay":
        for _ in range(rng.choice([0, 0, 1, 2])):
            place = f"{rng.choice(watched.NAMES)} {rng.choice([1, 1, 2, 3])}"
            faults[place] = rng.choice(watched.KINDS)
        kind, name = _WATCHED[seed // 2 % len(_WATCHED)]
        faults[f"{name} 1"] = kind
        if rng.random() < 0.15 and world != "own-folder":
            faults[f"{rng.choice(watched.NAMES)} always"] = "exit"
        return Schedule(seed, world, last, faults)
    messages = [rng.choice(relayed.ANSWERS) for _ in range(5)]
    kind, aimed = _RELAYED[seed // 2 % len(_RELAYED)]
    if aimed in relayed.CALLS:
        faults[f"{aimed} 1.1"] = kind
    elif aimed == "started":
        faults["started 0"] = kind
    else:
        number = rng.randint(1, len(messages))
        faults[f"{aimed} {number}"] = kind
        if (line := aimed.removeprefix("ledger:")) != aimed:
            writers = [a for a, lines in relayed.LINES_OF.items() if line in lines]
            messages[number - 1] = rng.choice(writers)
    for _ in range(rng.choice([0, 1, 1, 2])):
        number = rng.randint(1, len(messages))
        if rng.random() < 0.5:
            place = (
                f"{rng.choice(list(relayed.CALLS))} {number}.{rng.choice([1, 1, 1, 2, 3])}"
            )
            faults[place] = rng.choice(relayed.LINE_KINDS)
        else:
            lines = relayed.LINES_OF.get(messages[number - 1], ("refused", "sent"))
            of_ledger = rng.random() < 0.5
            kind = rng.choice(relayed.DISK_KINDS if of_ledger else ("kill", "term", "int"))
            moment = rng.choice(relayed.MOMENTS)
            if of_ledger:
                moment = f"ledger:{rng.choice(lines)}"
            faults[f"{moment} {0 if moment == 'started' else number}"] = kind
    last = rng.choice(["term", "int", "kill"])
    return Schedule(seed, world, last, faults, tuple(messages))


@cache
def _site() -> Path:
    """Return a site's folder to copy; its keys take longer than a schedule."""
    root = Path(tempfile.mkdtemp())
    text = default_text().replace('shelter = "bwrap"', 'shelter = "none"')
    text = text.replace("run-replies = 0", f"run-replies = {relayed.MOST_REPLIES}")
    init_federation(root / "f", ["127.0.0.1"], ["a"], policy=text)
    return root / "f" / NODES / "a"


def judge(schedule: Schedule) -> tuple[list[str], list[str]]:
    """Play a schedule; return what was wrong, and which faults fired."""
    shared = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="fp-", dir=shared if shared.is_dir() else None))
    try:
        (root / "plan.json").write_text(json.dumps(dict(schedule.faults)))
        (root / "events").touch()
        (root / "t").mkdir()
        world = relayed if schedule.world == "relay" else watched
        wrong = world.play(schedule, _site(), root)
        fired = [" ".join(e[1:]) for e in events(root) if e[0] == "fired"]
        return wrong, fired
    finally:
        shutil.rmtree(root, ignore_errors=True)


def shrunk(
    schedule: Schedule, wrong: str, judge: Callable[[Schedule], tuple[list[str], list[str]]]
) -> Schedule:
    """Return the schedule with the fewest faults that fails alike."""
    kind = wrong.partition(":")[0]
    for place in list(schedule.faults):
        fewer = {p: k for p, k in schedule.faults.items() if p != place}
        again = replace(schedule, faults=fewer)
        if any(problem.partition(":")[0] == kind for problem in judge(again)[0]):
            schedule = again
    return schedule


def main() -> int:
    """Play seeds; print each that fails, with the fewest faults that do."""
    parser = argparse.ArgumentParser(prog="python -m tests.disasters.processes")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=60, help="how many")
    parser.add_argument("--seed", type=int, help="one seed, told in full")
    given = parser.parse_args()
    if given.seed is not None:
        print(schedule := drawn(given.seed), *judge(schedule), sep="\n")
        return 0
    with stop_signals_raise():
        return int(bool(play_seeds(given.first, given.seeds)))


def play_seeds(first: int, seeds: int) -> int:
    """Play seeds in a row and print what they show; return how many failed."""
    began, failed, count = time.monotonic(), 0, Counter[tuple[str, str]]()
    for seed in range(first, first + seeds):
        schedule = drawn(seed)
        wrong, fired = judge(schedule)
        words_of = [words.split(" ") for words in fired]
        count.update((words[-1], words[0]) for words in words_of)
        if wrong:
            failed += 1
            print(f"seed {seed} [{schedule.world}] {wrong[0]}", flush=True)
            fewest = shrunk(schedule, wrong[0], judge)
            print(f"  fewest: {json.dumps(asdict(fewest))}", flush=True)
    seconds = (time.monotonic() - began) / max(seeds, 1)
    print(f"{seeds} seeds, {failed} failed, {seconds:.2f} s a seed")
    print(coverage(count, TARGETS))
    return failed


if __name__ == "__main__":
    sys.exit(main())
