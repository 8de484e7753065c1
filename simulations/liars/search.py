"""The search: a seeded hill climb over lies, for each method of the registry."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsuite.core.registry import METHODS
from fedsuite.core.rng import numpy_stream
from fedsuite.messages.records import EVALUATE, TRAIN
from fedsuite.strategies import load_strategy
from simulations.liars.lies import ALL, DATA, FORMS, NUMBERED, WHEN, Act, Lie, Target
from simulations.liars.runs import (
    SETTINGS,
    Outcome,
    Setting,
    absent,
    play,
)

AIMS = ("share", "accuracy", "end")
"""What a climb makes large: the liar's share, the others' loss, the rounds lost."""

MOST_ACTS = 3

_COMMON = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 1e6, 1e30, math.nan)
_DEVIATIONS = (0.99, 1.01)


def grid_of(limits: Collection[float]) -> list[float]:
    """Return the numbers c of lies: common ones, and both sides of each threshold."""
    near = {factor * limit for limit in limits for factor in _DEVIATIONS}
    return [*sorted({c for c in _COMMON if c == c} | near), math.nan]


@dataclass(frozen=True)
class Found:
    """One run of the search."""

    method: str
    setting: Setting
    seed: int
    run: int
    lie: Lie
    outcome: Outcome
    without: Outcome

    @property
    def lost(self) -> float:
        """Points of accuracy that the others lose against a liar that is absent."""
        return self.without.accuracy - self.outcome.accuracy

    @property
    def rounds_lost(self) -> int:
        """Rounds that a run without the liar has, and this one has not."""
        return self.without.rounds - self.outcome.rounds

    @property
    def ended(self) -> str:
        """What ended the run, where that did not end the one without the liar."""
        return self.outcome.ended if self.outcome.ended != self.without.ended else ""

    @property
    def named(self) -> frozenset[tuple[int, str]]:
        """Honest clients that are named because of the lie."""
        return self.outcome.named - self.without.named

    def score(self, aim: str) -> float:
        """Return how well the lie meets an aim."""
        if aim == "share":
            return (self.outcome.share or 0.0) / self.outcome.size_share
        if aim == "accuracy":
            return self.lost
        return (
            self.rounds_lost
            + 0.5 * bool(self.ended)
            + 0.1 * self.outcome.failed
            + 0.01 * len(self.named)
        )


def is_averaging(method: str) -> bool:
    """Return whether a method's clients send back one shared model, several in a round."""
    strategy = load_strategy(METHODS[method])
    return strategy.trains_one_model() and strategy.DEFAULTS.get("clients-per-round") != 1


def skipped(method: str) -> str:
    """Return why there is nothing to search in a method; empty for a reason to search."""
    if method == "newton":
        return "its records are sums of derivatives, which no lie here is made for"
    first = absent(method, SETTINGS[0])
    if not any(t.phase == TRAIN and t.kind == "record" for t in first.targets):
        return "no client sends anything that reaches another"
    return ""


def search(method: str, runs: int, seed: int = 0) -> Iterator[Found]:
    """Yield the runs of a climb; of a larger number of runs the first ones are the same."""
    best: dict[str, Found] = {}
    targets: dict[Setting, list[Target]] = {}
    for run in range(runs):
        # Each aim meets each setting.
        setting = SETTINGS[(run + run // len(AIMS)) % len(SETTINGS)]
        without = absent(method, setting)
        targets.setdefault(setting, sorted(without.targets))
        aim = AIMS[run % len(AIMS)]
        draws = numpy_stream(seed, f"liars-{method}", run)
        climb = Climb(draws, targets[setting], grid_of(without.limits))
        if run < len(AIMS):
            lie = climb.first(aim, sorted(without.limits))
        elif aim in best and draws.random() < 0.7:
            lie = climb.neighbour(best[aim].lie)
        else:
            lie = climb.drawn()
        lie = replace(lie, probe=aim == "share")
        outcome = play(method, setting, lie, seed=seed)
        found = Found(method, setting, seed, run, lie, outcome, without)
        for name in AIMS:
            if name not in best or found.score(name) > best[name].score(name):
                best[name] = found
        yield found


@dataclass
class Climb:
    """Draws lies and their neighbours."""

    draws: np.random.Generator
    targets: Sequence[Target]
    grid: Sequence[float]

    def first(self, aim: str, limits: Sequence[float]) -> Lie:
        """Return where the climb to an aim begins: all that a liar says, at a threshold."""
        limit = float(self.draws.choice(limits))
        if aim == "share":
            return Lie((Act(Target(TRAIN, "metric", ALL), "times", 0.99 * limit),))
        form = "length" if aim == "accuracy" else "others"
        lie = Lie((Act(Target(TRAIN, "record", ALL), form, -0.99 * limit),))
        if not any(target.kind == "counts" for target in self.targets):
            return lie
        counts = Act(Target(TRAIN, "counts", ALL), "times", 0.99 * limit)
        return replace(lie, acts=(*lie.acts, counts))

    def drawn(self) -> Lie:
        """Return any lie."""
        count = 1 + int(self.draws.integers(MOST_ACTS))
        data = str(self.draws.choice(DATA[:3], p=(0.8, 0.1, 0.1)))
        return Lie(tuple(self._act() for _ in range(count)), data)

    def neighbour(self, lie: Lie) -> Lie:
        """Return a lie with one thing changed."""
        acts = [act for act in lie.acts if self._fits(act)]
        if not acts:
            return self.drawn()
        place = int(self.draws.integers(len(acts)))
        act, step = acts[place], self.draws.random()
        if step < 0.35 and act.form in NUMBERED:
            acts[place] = replace(act, c=self._near(act.c))
        elif step < 0.5:
            acts[place] = replace(act, when=str(self.draws.choice(WHEN)))
        elif step < 0.65:
            form = str(self.draws.choice(FORMS[act.target.kind]))
            acts[place] = replace(act, form=form)
        elif step < 0.9 and len(acts) < MOST_ACTS:
            acts.append(self._act())
        else:
            acts[place] = self._act()
        return replace(lie, acts=tuple(acts))

    def _fits(self, act: Act) -> bool:
        return act.target.name == ALL or act.target in self.targets

    def _act(self) -> Act:
        phase = EVALUATE if self.draws.random() < 0.15 else TRAIN
        kind = str(self.draws.choice(("record", "metric", "reply"), p=(0.45, 0.45, 0.1)))
        kinds = ("record", "counts") if kind == "record" else (kind,)
        found = [t for t in self.targets if t.phase == phase and t.kind in kinds]
        if not found:
            return self._act()
        target = found[int(self.draws.integers(len(found)))]
        if kind != "reply" and self.draws.random() < 0.25:
            target = target._replace(name=ALL)
        form = str(self.draws.choice(FORMS[target.kind]))
        c = float(self.draws.choice(self.grid))
        if kind == "record" and self.draws.random() < 0.5:
            c = -c
        return Act(target, form, c, str(self.draws.choice(WHEN)))

    def _near(self, c: float) -> float:
        """Return a number of the grid one or two steps away, or the same one's opposite."""
        if self.draws.random() < 0.2 or c != c:
            return -c if c == c else 1.0
        place = int(np.searchsorted(np.array(self.grid[:-1]), abs(c)))
        step = int(self.draws.choice((-2, -1, 1, 2)))
        other = self.grid[min(max(place + step, 0), len(self.grid) - 1)]
        return math.copysign(other, c)


def row_of(found: Found) -> dict[str, Any]:
    """Return a run as a row of the CSV."""
    share = found.outcome.share
    kinds = sorted({kind for _, kind in found.named})
    return {
        "method": found.method,
        "seed": found.seed,
        "run": found.run,
        "setting": found.setting.name,
        "lie": str(found.lie),
        "share": "" if share is None else f"{share:.3f}",
        "size_share": f"{found.outcome.size_share:.3f}",
        "lost": f"{found.lost:.1f}",
        "absent": f"{found.without.accuracy:.1f}",
        "rounds_lost": found.rounds_lost,
        "failed": found.outcome.failed,
        "ended": found.ended,
        "named": ", ".join(kinds),
        "first_suspect": found.outcome.first_suspect,
    }
