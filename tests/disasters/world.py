"""The world of one run: what chance decides, virtual time, and the clocks.

Each fault belongs to a *named place*, such as ``train 3.1 node-2`` or ``fsync:checkpoint
1.2``, and never to a running number of draws. So a schedule is a table of places and kinds;
leaving one fault out leaves all others where they were.
"""

import heapq
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fedsuite.core.keys import Value

TIMEOUT_S = 60.0
"""Seconds that a round waits for replies, in the world's time."""

_LONGEST_S = 1e5

NUM_CLIENTS, NUM_ROUNDS = 4, 5

MESSAGE_KINDS = (
    *("lose", "lose-reply", "late", "reorder", "twice-reply", "twice-request"),
    *("old-group", "other-run", "raise", "refused", "push-fails", "superlink", "leave"),
    *("malformed", "nan", "lost-state", "old-state"),
)
"""What can happen to one message and its node."""

HELLO_KINDS = ("lose", "late", "other-code")

PROCESS_KINDS = ("kill", "power", "full", "eio", "interrupt", "second-server", "clock")
"""What can happen to the server's process and its disk, between any two of its steps."""

DEATHS = frozenset({"kill", "power", "interrupt"})
STEADY = frozenset({"second-server", "clock"})
"""What must not change a bit of a run."""

LINK_KINDS = ("link-back", "link-anew")
"""What can happen to the SuperLink: it comes back, or comes back without its database."""

REST_KINDS = ("flip",)
"""What can happen to a file while no server runs."""

FILE_CLASSES = (
    *("checkpoint", "rounds", "clients", "events", "manifest", "experiment"),
    *("state", "model", "best-model", "summary", "ledger"),
)
_OPERATIONS = ("open", "write", "fsync", "replace")
_MOMENTS = (
    *(f"{what}:{file}" for file in FILE_CLASSES for what in _OPERATIONS),
    *("unlink:checkpoint", "unlink:state", "mkdir:other", "fsync:other"),
    *(f"{what}:{kind}" for what in ("send", "reply") for kind in ("train", "evaluate")),
    *("send:query.hello", "reply:query.hello", "end:run"),
)


def _targets() -> list[tuple[str, str]]:
    """Return all pairs of a kind of fault and a kind of place where it can happen."""
    pairs = [(kind, what) for kind in MESSAGE_KINDS for what in ("train", "evaluate")]
    pairs += [(kind, "query.hello") for kind in HELLO_KINDS]
    appended = {"open", "write", "fsync"}
    lines = {"rounds", "clients", "events"}
    for kind in PROCESS_KINDS:
        for moment in _MOMENTS:
            operation, _, file = moment.partition(":")
            if operation == "end" and kind != "power":
                continue
            if kind in ("full", "eio") and operation == "unlink":
                continue
            if file in lines and operation not in appended:
                continue
            pairs.append((kind, moment))
    pairs += [(kind, f"rest:{file}") for kind in REST_KINDS for file in FILE_CLASSES]
    # So that a few seeds in a row have something of everything.
    random.Random("targets").shuffle(pairs)
    return pairs


TARGETS = _targets()
"""What seeds aim at, one after the other: the coverage is of these pairs."""

STAGES = ("query.secure_keys", "query.secure_shares", "train", "query.secure_unmask")
"""Types of the messages of a secure sum under masks, in their order."""

_OF_STAGES = (
    *("lose", "lose-reply", "late", "twice-reply", "twice-request", "old-group"),
    *("other-run", "raise", "refused", "superlink", "leave", "malformed", "lost-state"),
)

SECURE_TARGETS = (
    *((kind, stage) for kind in _OF_STAGES for stage in STAGES),
    ("nan", "train"),
    *(
        (kind, f"{what}:{stage}")
        for kind in ("kill", "interrupt", "clock")
        for what in ("send", "reply")
        for stage in STAGES
    ),
)
"""What worlds with secure sums aim at, beside their other aims."""

LINK_TARGETS = tuple(
    (kind, f"{what}:{message}")
    for kind in LINK_KINDS
    for what in ("send", "reply")
    for message in ("train", "evaluate", "query.hello")
)
"""What some worlds aim at, beside their other aims."""

_VISITS = (1, 1, 1, 2, 3, 5, 8)
_LINK_SHARE, _SUMS_SHARE = 0.08, 0.35
"""Shares of seeds with a SuperLink that is started again, and of those that can sum."""

METHODS: Mapping[str, Mapping[str, Value]] = {
    "fedavg": {"method": "fedavg"},
    "scaffold": {"method": "scaffold"},
    "fedbuff": {"method": "fedbuff"},
    "fedbuff-real": {"method": "fedbuff", "fedbuff-delays": "real"},
    "fedakd": {"method": "fedakd"},
    "momentum": {"method": "fedavg", "server-momentum": 0.5},
    "qffl": {"method": "qffl", "max-share-ratio": "off"},
    "noise": {"method": "fedavg", "dp-noise-multiplier": 1.0},
    "feddc": {"method": "feddc"},
    "ifca": {"method": "ifca"},
    "fedeba-plus": {"method": "fedeba-plus"},
}
"""The methods of a world; the model of the last three is judged by bits alone."""

SUMMED = ("fedavg", "momentum", "scaffold", "feddc")
"""Those of them that can add up under masks."""

_SUMS: Mapping[str, Value] = {"clipping-range": 8.0, "most-examples": 1000}


@dataclass(frozen=True)
class Plan:
    """A world before anything happens: all of it follows from this.

    Parameters
    ----------
    seed
        Of delays, and of where the faults are if ``faults`` is None.
    method
        One of :data:`METHODS`.
    keys
        Other keys of the experiment.
    num_nodes
        Number of nodes; the clients are shared out among them.
    own_processes
        Whether nodes are processes of their own, which outlive the server.
    fresh
        Whether a server that goes on meets other faults than its forerunner.
    rates
        Kind of a message's fault to its probability.
    aims
        Kind of fault, kind of place (empty: any of the process), and at which visit.
    faults
        Place to kind, where the schedule is known; None draws it.
    """

    seed: int
    method: str
    keys: Mapping[str, Value] = field(default_factory=dict)
    num_nodes: int = 4
    own_processes: bool = False
    fresh: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)
    aims: tuple[tuple[str, str, int], ...] = ()
    faults: Mapping[str, str] | None = None

    @classmethod
    def drawn(cls, seed: int) -> "Plan":
        """Return the plan of a seed; seeds in a row aim at all :data:`TARGETS` in turn."""
        rng = random.Random(f"world {seed}")
        kind, where = TARGETS[seed % len(TARGETS)]
        methods = list(METHODS)
        if where.endswith(":ledger"):
            methods = ["noise"]
        elif kind in ("lost-state", "old-state") or where.endswith(":state"):
            methods = ["scaffold", "fedakd", "feddc"]
        keys: dict[str, Value] = {
            "quorum": rng.choice([1, 1, 2]),
            "max-failed-rounds": rng.choice([1, 3]),
            "checkpoint-every": rng.choice([0, 1, 1, 2, 3]),
            "clients-per-round": rng.choice([0, 3]),
            "learning-rate": rng.choice([0.05, 3.0]),
            "best-model-metric": rng.choice(["", "accuracy_mean"]),
        }
        if where.endswith(":best-model"):
            methods.remove("noise")
            keys["best-model-metric"] = "accuracy_mean"
        if where.endswith((":checkpoint", ":state")) and not keys["checkpoint-every"]:
            keys["checkpoint-every"] = 1
        method = rng.choice(methods)
        if method == "noise":
            # What noise protects must show neither in a choice nor in who answered.
            keys |= {"best-model-metric": "", "quorum": 1}
        own = rng.random() < 0.5
        if kind in ("lost-state", "old-state") or where.endswith(":state"):
            own = kind in ("lost-state", "old-state")
        rate = rng.choice([0.0, 0.05, 0.15, 0.35])
        kinds = rng.sample(MESSAGE_KINDS, rng.randint(1, 4))
        aims = [(kind, where, rng.choice(_VISITS))]
        if kind == "flip":
            # A file lies at rest between two servers alone.
            aims.append(("kill", "", int(rng.triangular(60, 260, 120))))
        if rng.random() < 0.5:
            other, place = rng.choice(TARGETS)
            aims.append((other, place, rng.choice(_VISITS)))
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            other = rng.choice(["kill", "kill", "power", "power", "full", "eio"])
            aims.append((other, "", int(rng.triangular(1, 420, 60))))
        plan = cls(
            seed,
            method,
            keys,
            rng.choice([2, 4, 4]),
            own,
            rng.random() < 0.5,
            {one: rate / len(kinds) for one in kinds},
            tuple(aims),
        )
        return plan._with_link()._with_sums()

    def _with_link(self) -> "Plan":
        """Return the plan, some with a SuperLink that is started again."""
        # A stream of its own, so that what all others draw stays.
        rng = random.Random(f"link {self.seed}")
        if rng.random() >= _LINK_SHARE:
            return self
        aim = (*rng.choice(LINK_TARGETS), rng.choice(_VISITS))
        return replace(self, aims=(*self.aims, aim))

    def _with_sums(self) -> "Plan":
        """Return the plan, some of those that can with secure sums."""
        rng = random.Random(f"sums {self.seed}")
        if self.method not in SUMMED or rng.random() >= _SUMS_SHARE:
            return self
        # A sum of three opens with all of them alone.
        asked = rng.choice([0, 0, 0, 3])
        mode = rng.choice(["masked", "masked", "masked", "unmasked"])
        keys = {**self.keys, **_SUMS, "clients-per-round": asked}
        keys["secure-aggregation"] = mode
        plan = replace(self, keys=keys)
        if mode == "unmasked":
            return plan
        kind, where = rng.choice(SECURE_TARGETS)
        aim = kind, where, rng.choice(_VISITS)
        own = plan.own_processes or kind == "lost-state"
        return replace(plan, own_processes=own, aims=(*plan.aims, aim))

    @property
    def has_masks(self) -> bool:
        """Whether clients add up under masks."""
        return self.keys.get("secure-aggregation") == "masked"


class World:
    """A plan that is played: time, nodes, and the faults that have happened."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.fired: dict[str, str] = {}
        self.now = 0.0
        self.wall_step = 0.0
        self.booted = -1000.0
        # After a stop a person has mended what was wrong.
        self.calm = self.process_calm = False
        self.attempt = 0
        self.second_server: Callable[[], None] = lambda: None
        self.in_second_server = False
        self.visits: Counter[str] = Counter()
        self.touched: Counter[str] = Counter()
        self._aims = list(plan.aims)
        self._drawn: dict[str, str] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self.nodes = {p: 1000 + p for p in range(plan.num_nodes)}
        self.next_node = 2000
        # How often the SuperLink has lost all that it knew, and when it can be reached.
        self.link, self.link_back_at = 0, 0.0
        self.inbox: dict[str, list[Any]] = defaultdict(list)

    @property
    def is_retried(self) -> bool:
        """Whether Flower starts a server again, in the run whose nodes remember sums."""
        plan = self.plan
        can = plan.own_processes and plan.has_masks
        return can and self.chance("retried").random() < 0.5

    def chance(self, name: str) -> random.Random:
        """Return the random stream of one name."""
        return random.Random(f"{self.plan.seed} {name}")

    # ------------------------------------------------------------------------------ faults

    def message_fault(self, place: str, kinds: Collection[str]) -> str | None:
        """Return what happens at a message's place, which a later server may pass again."""
        if self.calm:
            return None
        if self.plan.fresh and self.attempt > 1:
            place = f"{place} again-{self.attempt}"
        if self.plan.faults is not None:
            kind = self.plan.faults.get(place)
        elif place in self._drawn:
            kind = self._drawn[place]
        else:
            kind = self._drawn[place] = self._aimed(place) or self._by_rate(place) or ""
        return self._fires(place, kind, kinds)

    def process_fault(
        self, what: str, kinds: Collection[str] = (*PROCESS_KINDS, *LINK_KINDS)
    ) -> str | None:
        """Return what happens to the server at a moment of its own."""
        if self.calm or self.process_calm or self.in_second_server:
            return None
        self.touched[what] += 1
        place = f"{what} {self.attempt}.{self.touched[what]}"
        if self.plan.faults is not None:
            kind = self.plan.faults.get(place)
        else:
            kind = self._aimed(place)
        return self._fires(place, kind, kinds)

    def rest_fault(self, file: str) -> bool:
        """Return whether a bit of a file of this class flips, between two servers."""
        place = f"rest:{file} {self.attempt}"
        if self.calm:
            return False
        known = self.plan.faults
        kind = self._aimed(place) if known is None else known.get(place)
        return self._fires(place, kind, REST_KINDS) is not None

    def _aimed(self, place: str) -> str | None:
        """Return the kind that was aimed at this visit of such a place."""
        what = place.partition(" ")[0]
        of_process = ":" in what and not what.startswith("rest:")
        groups = (what, "") if of_process else (what,)
        for group in groups:
            self.visits[group] += 1
        for aim in self._aims:
            kind, wanted, number = aim
            # A rare place is met at the first visit, or never.
            rare = what.startswith(("rest:", "end:"))
            if wanted in groups and (self.visits[wanted] >= number or rare):
                self._aims.remove(aim)
                return kind
        return None

    def _by_rate(self, place: str) -> str | None:
        draw = self.chance(f"fault {place}").random()
        for kind, rate in self.plan.rates.items():
            draw -= rate
            if draw < 0:
                return kind
        return None

    def _fires(self, place: str, kind: str | None, kinds: Collection[str]) -> str | None:
        if not kind or kind not in kinds:
            return None
        self.fired[place] = kind
        return kind

    # ------------------------------------------------------------------------------- time

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have something happen at a time."""
        self._number += 1
        heapq.heappush(self._events, (when, self._number, action, arguments))

    def run_until(self, when: float) -> None:
        """Let time pass."""
        if when > _LONGEST_S:
            raise RuntimeError("the server waits for ever")
        while self._events and self._events[0][0] <= when:
            due, _, action, arguments = heapq.heappop(self._events)
            self.now = max(self.now, due)
            action(*arguments)
        self.now = max(self.now, when)

    def restart_link(self, kind: str, place: str) -> None:
        """Have the SuperLink go and come back, with its database or without."""
        rng = self.chance(f"{kind} {place} {self.attempt}")
        self.link_back_at = self.now + rng.uniform(1.0, 0.9 * TIMEOUT_S)
        is_new = kind == "link-anew"
        if is_new:
            self.link += 1
            self.inbox.clear()
        for partition, node in self.nodes.items():
            if not node or not (is_new or rng.random() < 0.5):
                continue
            self.next_node += is_new
            back = self.next_node if is_new else node
            when = self.link_back_at + rng.uniform(0.0, 0.5 * TIMEOUT_S)
            self.nodes[partition] = 0
            self.at(when, self.nodes.__setitem__, partition, back)

    def step_clock(self, place: str) -> None:
        """Set the wall clock forwards or back, by up to a year."""
        rng = self.chance(f"clock {place}")
        self.wall_step += rng.choice([-1, 1]) * 10 ** rng.uniform(1.0, 7.5)

    @contextmanager
    def clocks(self) -> Iterator[None]:
        """Stand in for all clocks of this process; sleeping lets the world's time pass."""

        def wall() -> float:
            return 1.8e9 + self.now + self.wall_step

        def monotonic() -> float:
            # Since the machine has started: it begins anew after a loss of power.
            return self.now - self.booted

        stand_ins = {
            "time": wall,
            "time_ns": lambda: int(wall() * 1e9),
            "monotonic": monotonic,
            "perf_counter": monotonic,
            "process_time": lambda: 0.0,
            "sleep": lambda seconds: self.run_until(self.now + max(seconds, 1e-6)),
        }
        known = {name: getattr(time, name) for name in stand_ins}
        try:
            for name, stand_in in stand_ins.items():
                setattr(time, name, stand_in)
            yield
        finally:
            for name, real in known.items():
                setattr(time, name, real)
