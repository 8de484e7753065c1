"""The clock of a rehearsed world: when replies come, who is there, what a round waits for.

An exchange takes a client the time of the message, of its work and of its reply, as
:meth:`fedsuite.devices.world.Device.seconds` has it: work is the multiplications that the
client carried out, and bytes are the payloads that the run counts. Exchanges inside a round
wait for all; the one that the round closes with may take the first replies alone, or those
before a deadline. A device that leaves before its reply came is heard of when it leaves.
Evaluation is a measurement, which takes no time.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from fedsuite.core.errors import RunError
from fedsuite.devices.world import World
from fedsuite.messages.records import MULTIPLICATIONS, VIRTUAL_SECONDS
from fedsuite.rounds.exchange import Exchange, ReplyReader, Unused
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply

COPIES = 4
"""Models that a device holds while it trains: two, and an optimiser's two."""

_MOST_WAITS = 100_000


class Missed(NamedTuple):
    """A reply that was made and does not count."""

    client_id: int
    kind: Kind
    reason: str


class VirtualClock(Stage):
    """Tells when each reply comes in a world of devices.

    Parameters
    ----------
    world
        The clients' devices.
    over_select
        Clients asked over replies waited for, from 1; 1 waits for all.
    deadline
        Seconds that the last exchange of a round waits; 0 waits for all.

    Attributes
    ----------
    now
        Virtual seconds since the run began.
    closes
        Group of the exchange that the round closes with.
    durations
        Client to the seconds of its last exchange.
    """

    name: ClassVar[str] = "clock"

    def __init__(
        self, world: World, over_select: float = 1.0, deadline: float = 0.0
    ) -> None:
        self.world = world
        self.now = 0.0
        self.over_select = over_select
        self.deadline = deadline
        self.closes = ""
        self.durations: dict[int, float] = {}
        self._arrivals: dict[int, float] = {}
        self._wanted = 0
        self._end = 0.0

    # -------------------------------------------------------------------- who is there

    def there(self, client_ids: Iterable[int]) -> list[int]:
        """Return those of some clients whose device is there now."""
        return [k for k in client_ids if self._begins(k) <= self.now]

    def _begins(self, client_id: int) -> float:
        """Return when a device is there from, now or next; infinity if it never comes."""
        span = self.world.device(client_id).availability.span(self.now)
        return math.inf if span is None else span[0]

    def wait_for(self, client_ids: Sequence[int], least: int) -> list[int]:
        """Let time pass until enough clients are there, and return those who are.

        Raises
        ------
        RunError
            If there will never be as many.
        """
        least = min(least, len(client_ids))
        for _ in range(_MOST_WAITS):
            begins = {k: self._begins(k) for k in client_ids}
            there = [k for k, begin in begins.items() if begin <= self.now]
            if len(there) >= least:
                return there
            later = min((b for b in begins.values() if b > self.now), default=math.inf)
            if later == math.inf:
                break
            self.now = later
        raise RunError(
            f"devices: after {self.now:.0f} virtual seconds there are never {least} "
            "clients at once any more: change the availability, or lower quorum"
        )

    def to_ask(self, count: int) -> int:
        """Return how many clients to ask for so many replies."""
        self._wanted = count
        # So that 1.1 times 10 are 11.
        return math.ceil(count * self.over_select - 1e-9)

    # ------------------------------------------------------------------ when replies come

    def timed(
        self, reader: ReplyReader, outcomes: Iterable[ClientReply | Unused]
    ) -> Iterator[ClientReply | Unused | Missed]:
        """Yield what comes of an exchange, and :class:`Missed` for what comes too late.

        Good replies keep their order. Failures are heard of at once.
        """
        self._arrivals, self._end = {}, self.now
        closes = reader.group_id == self.closes
        last = self.now + self.deadline if closes and self.deadline else math.inf
        takes_first = closes and self.over_select > 1
        held: list[ClientReply] = []
        for outcome in outcomes:
            if isinstance(outcome, Unused):
                yield outcome
                continue
            reply = self._told(reader.exchange, outcome, last)
            if takes_first and not isinstance(reply, Missed):
                held.append(reply)
            else:
                yield reply
        if not takes_first:
            return
        order = sorted(held, key=lambda r: (self._arrivals[r.client_id], r.client_id))
        first = {reply.client_id for reply in order[: self._wanted]}
        if len(order) >= self._wanted > 0:
            self._end = self._arrivals[order[self._wanted - 1].client_id]
        for reply in held:
            if reply.client_id in first:
                yield reply
            else:
                reason = f"{self._wanted} others came first"
                yield Missed(reply.client_id, Kind.LATE, reason)

    def _told(
        self, exchange: Exchange, reply: ClientReply, last: float
    ) -> ClientReply | Missed:
        """Return a reply with its time, unless it does not come by the last second."""
        client_id = reply.client_id
        device = self.world.device(client_id)
        held = exchange.bytes_to(client_id)
        if COPIES * held > device.memory:
            return Missed(
                client_id,
                Kind.CLIENT_FAILED,
                f"{COPIES} models of {held:.0f} bytes are more than the memory of its "
                f"device, a {device.profile}",
            )
        work = float(reply.metrics.get(MULTIPLICATIONS, 0.0))
        sent = exchange.bytes_on_the_line(client_id)
        seconds = device.seconds(work, sent, reply.num_bytes)
        arrival = self.now + seconds
        begins, ends = device.availability.span(self.now) or (math.inf, math.inf)
        leaves = ends if begins <= self.now else self.now
        if leaves < min(arrival, last):
            self._end = max(self._end, leaves)
            reason = f"its device is away from virtual second {leaves:.0f} on"
            return Missed(client_id, Kind.NOT_CONNECTED, reason)
        self._arrivals[client_id] = arrival
        self.durations[client_id] = seconds
        self._end = max(self._end, min(arrival, last))
        if arrival > last:
            reason = f"it came {arrival - last:.1f} virtual seconds after the deadline"
            return Missed(client_id, Kind.LATE, reason)
        return replace(reply, metrics={**reply.metrics, VIRTUAL_SECONDS: seconds})

    def arrival(self, client_id: int) -> float:
        """Return when a client's reply to the last exchange comes."""
        return self._arrivals[client_id]

    def end_exchange(self) -> None:
        """Let the time of the last exchange pass."""
        self.move_to(self._end)

    def end_round(self) -> None:
        """Let the server's own time pass."""
        self.now += self.world.server_seconds

    def move_to(self, second: float) -> None:
        """Let time pass until a second, which may be over."""
        self.now = max(self.now, second)

    @override
    def state(self) -> State:
        return {
            "now": self.now,
            "durations": {str(k): s for k, s in self.durations.items()},
        }

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self.now = float(state["now"])
        self.durations = {int(k): float(s) for k, s in state["durations"].items()}
