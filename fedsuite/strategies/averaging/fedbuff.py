"""FedBuff: rounds that close when some of the clients in training have replied.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba, "Federated
Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv:2106.06639.

Equation used, for the K replies that close a round, of which reply i was trained from the
model of tau_i rounds ago, with the change Delta_i that the client made to it:

    w_{t+1} = w_t + eta sum_i p_i s(tau_i) Delta_i,   s(tau) = (1 + tau)^-a.

``clients-per-round`` is the number of clients in training at a time. When a round closes,
the free places go to clients that are not in training, with the new model.

Known to hold: with K = the clients in training no reply is late, and the method is FedAvg
bit for bit.

How long a client trains is either planned or real.

- Planned: the logarithm of a training's length is normal, half of its variance the client's
  and half its own; with ``devices`` the clock of that world says it. The replies of such a
  run have the same bits on every engine. A client trains when it is asked, and its reply is
  held back until its time.
- Real: messages are pushed to nodes, and replies pulled as they come. Evaluation asks the
  clients that are not in training.

Deviations. p_i is the share of examples, with K replies, as in FedAvg; the paper's is 1 / K
(``fedbuff-size-weights = false``). A free place waits for the end of the round. Statistics
of normalisation layers are averaged as they came, without a discount.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal, cast

from flwr.app import Message
from flwr.serverapp import Grid
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    NO_REPLY,
    SERVER_ROUND,
    TRAIN,
    Arrays,
    ClientReply,
    ConfigValue,
    OneOf,
    Release,
    ReplyReader,
    Rule,
    Unless,
    Value,
    With,
    alike,
    key,
    numpy_stream,
    state,
)
from fedsuite.rounds.changes import length, trained
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.outstanding import Outstanding, Sent
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.late_replies import (
    Held,
    as_change,
    held_of,
    moved,
    state_of,
)


def discount(staleness: int, power: float) -> float:
    """Return s(tau) = (1 + tau)^-a: 1 for a fresh reply or power 0."""
    return float((1 + staleness) ** -power)


def planned_length(seed: int, spread: float, server_round: int, client_id: int) -> float:
    """Return how long a client trains in a round; the median over all is 1."""
    own = numpy_stream(seed, "fedbuff-client", 0, client_id).standard_normal()
    once = numpy_stream(seed, "fedbuff-round", server_round, client_id).standard_normal()
    return math.exp(spread * (own + once) / math.sqrt(2.0))


class FedBuff(FedAvg):
    """FedAvg of the replies that have come, the late ones with less weight."""

    PRIVACY: ClassVar[Release] = Release(
        "refused", "a round's replies are changes of models of several rounds"
    )
    PAPER: ClassVar[Mapping[str, Value]] = {"fedbuff-size-weights": False}
    FIXED: ClassVar[Mapping[str, Value]] = {"fedvarp": False}
    RULES: ClassVar[tuple[Rule, ...]] = (
        *alike(With("fedbuff-size-weights", False)),
        Rule(
            ("fedbuff-spread", "devices"),
            (Unless("devices", ""),),
            "the devices say how long a training lasts",
            "leave it out",
            idle=True,
        ),
        Rule(
            ("devices", "fedbuff-delays"),
            (Unless("devices", ""), With("fedbuff-delays", "real")),
            "it rehearses when replies come, and these come when they do",
            "leave one of them out",
        ),
    )
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("over-select", "round-deadline"), "no round waits for its slow clients"
    )
    OWN_MODELS: ClassVar[bool] = True
    FIXED_REASON: ClassVar[str] = "its clients start from models of several rounds"

    fedbuff_share: float = key(
        default=0.5,
        help="replies K that close a round, as a share of the clients in training; 1 is "
        "FedAvg",
        above=0.0,
        maximum=1.0,
    )
    fedbuff_discount: float = key(
        default=0.5,
        help="power a of the discount (1 + rounds)^-a of a late reply; 0 is none",
        minimum=0.0,
        search=OneOf(0.0, 0.5, 1.0),
    )
    fedbuff_size_weights: bool = key(
        default=True, help="whether a reply counts by its examples"
    )
    fedbuff_delays: Literal["planned", "real"] = key(
        default="planned",
        help="whether replies come when a plan says, on every engine alike, or as they do",
    )
    fedbuff_spread: float = key(
        default=1.0,
        help="deviation of the logarithm of a planned training's length; 0: all last alike",
        minimum=0.0,
        needs=(With("fedbuff-delays", "planned"),),
    )
    held: list[Held] = state(default_factory=list)
    clock: float = state(default_factory=float)
    outstanding: Outstanding = state(default_factory=Outstanding)
    _came: list[tuple[Sent, Message]] = state(default_factory=list)
    _heard_of: set[int] = state(default_factory=set)
    _num_asked: int = state(default_factory=int)

    @override
    def drawn(self, phase: str) -> list[int]:
        busy = self.outstanding.clients()
        if phase != TRAIN:
            there = [k for k in self.members() if k not in busy]
            return self.at_random(phase, there, self.num_drawn(phase, len(there)))
        busy |= {held.reply.client_id for held in self.held}
        places = self.num_drawn(TRAIN, len(self.members())) - len(busy)
        idle = [k for k in self.members() if k not in busy]
        if self.virtual_clock is not None and self.held:
            idle = self.virtual_clock.there(idle)
        else:
            idle = list(self.those_there(idle))
        return self.chosen(idle, max(places, 0))

    @override
    def converse(
        self, grid: Grid, messages: Iterable[Message], timeout: float
    ) -> Iterable[Message]:
        if self.fedbuff_delays == "planned":
            return super().converse(grid, messages, timeout)
        reader = self.pending.get(TRAIN)
        if reader is not None:
            self.outstanding.push(grid, reader, messages, timeout)
        wanted = self._wanted()

        def enough(arrived: int) -> bool:
            return len(self.held) + arrived >= wanted

        self._came = list(self.outstanding.pull(grid, enough, timeout))
        return [message for _, message in self._came]

    @override
    def delivered(
        self, reader: ReplyReader, messages: Iterable[Message]
    ) -> Iterator[ClientReply]:
        wanted, report = self._wanted(), self.reports[TRAIN]
        if self.fedbuff_delays == "planned":
            self._hold(reader, messages)
        self._take_in_real(reader)
        for client_id in sorted(self.outstanding.overdue()):
            self.remarks.reject(client_id, Kind.LATE, NO_REPLY)
        waiting = sorted(self.held, key=lambda h: (h.arrival, h.reply.client_id))
        due, self.held = waiting[:wanted], waiting[wanted:]
        if self.virtual_clock is None:
            self.clock = max(self.clock, due[-1].arrival) if due else self.clock
            self.round_metrics["clock"] = self.clock
        elif due:
            self.virtual_clock.move_to(due[-1].arrival)
        arrays = reader.exchange.shared[ARRAYS]
        fresh = [self._now(held, arrays) for held in due]
        # Who is still in training is no failure of this round.
        failed = {r.client_id for r in report.rejections} - {None}
        self._num_asked = len(failed | {held.reply.client_id for held in due})
        self.held = [
            as_change(held, arrays) if held.server_round == self.server_round else held
            for held in self.held
        ]
        for reply in sorted(fresh, key=lambda r: r.client_id):
            # As long as it is from this round's model, whatever it was when it came.
            norm = length(trained(reply.arrays[ARRAYS]), arrays)
            self.guard.norms[reply.client_id] = norm
            yield reply

    @override
    def num_asked(self, reader: ReplyReader) -> int:
        return self._num_asked

    @override
    def weight_of(self, reply: ClientReply) -> float:
        has_some = float(reply.num_examples > 0)
        return reply.num_examples if self.fedbuff_size_weights else has_some

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        changes, columns = state_of(self.held)
        return changes, {"clock": self.clock, **columns}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        columns = dict(scalars)
        self.clock = float(cast(float, columns.pop("clock")))
        self.held = held_of(arrays, columns)

    def _wanted(self) -> int:
        """Return K, the number of replies that close a round."""
        in_training = self.num_drawn(TRAIN, len(self.members()))
        return self.replies_per_round({"fedbuff-share": self.fedbuff_share}, in_training)

    @classmethod
    @override
    def replies_per_round(cls, values: Mapping[str, Value], num_clients: int) -> int:
        return max(1, round(float(values["fedbuff-share"]) * num_clients))

    @override
    def judge_first(self, reader: ReplyReader) -> None:
        if reader.num_good or self.outstanding.clients() <= self._heard_of:
            super().judge_first(reader)

    def _take_in_real(self, reader: ReplyReader) -> None:
        """Take in the real replies that have come, each to a message of its round."""
        for unused in reader.unused():
            self.remarks.unused(unused)
        came, self._came = self._came, []
        for sent, message in came:
            before = sent.reader.bytes_up
            self._hold(sent.reader, [message])
            self.reports[TRAIN].bytes_up += sent.reader.bytes_up - before
        for sent in dict.fromkeys(sent for sent, _ in came):
            sent.whole.hear(sent.reader)
            self._heard_of.update(sent.clients)
        for whole in dict.fromkeys(sent.whole for sent, _ in came):
            self.judge_first(whole)

    def _hold(self, reader: ReplyReader, messages: Iterable[Message]) -> None:
        """Take in the replies to the message of one round."""
        began = int(cast(int, reader.exchange.config[SERVER_ROUND]))
        planned = self.fedbuff_delays == "planned"
        for reply in self.passed(reader, messages, TRAIN):
            client_id, arrival = reply.client_id, 0.0
            if self.virtual_clock is not None:
                arrival = self.virtual_clock.arrival(client_id)
            elif planned:
                spread = self.fedbuff_spread
                length = planned_length(self.seed, spread, began, client_id)
                arrival = self.clock + length
            self.held.append(Held(arrival, began, reply))
            if began != self.server_round:
                self.held[-1] = as_change(self.held[-1], reader.exchange.shared[ARRAYS])

    def _now(self, held: Held, arrays: Arrays) -> ClientReply:
        """Return a reply as a model of this round, with its staleness."""
        reply, late = held.reply, self.server_round - held.server_round
        if late:
            share = discount(late, self.fedbuff_discount)
            model = moved(arrays, reply.arrays[ARRAYS], share)
            reply = replace(reply, arrays={ARRAYS: model})
        return replace(reply, metrics={**reply.metrics, "staleness": float(late)})
