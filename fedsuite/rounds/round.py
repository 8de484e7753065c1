"""A round of every method: ask, collect and check, reduce, step, and tell.

``configure_train`` asks, and ``aggregate_train`` does the rest. What the replies go through
is in :meth:`RoundStrategy.passed` and :meth:`RoundStrategy.counting`.
"""

import logging
import math
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from typing_extensions import override

from fedsuite.core.errors import ConfigError, RunError, one_line
from fedsuite.core.keys import AUTO
from fedsuite.core.logs import ServerLogger, in_own_run
from fedsuite.core.rng import numpy_stream
from fedsuite.devices.world import World
from fedsuite.messages.array_records import own_record, to_arrays, to_record
from fedsuite.messages.compression import DOWN, UP
from fedsuite.messages.records import ARRAYS, EVALUATE, NEW, TRAIN, Arrays
from fedsuite.messages.statistics import buffers_declared, names_of_buffers
from fedsuite.messages.versions import version_name
from fedsuite.rounds.average import HALF
from fedsuite.rounds.central_privacy import CentralPrivacy
from fedsuite.rounds.compression import Compressed, InBfloat16
from fedsuite.rounds.contract import MethodContract
from fedsuite.rounds.exchange import (
    NO_REPLY,
    Exchange,
    ReplyReader,
    Unused,
    build_messages,
)
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.fedvarp import UpdateMemory
from fedsuite.rounds.first_exchange import FirstExchanges
from fedsuite.rounds.guard import BELIEVED, BELIEVED_COUNT, Guard, Limit
from fedsuite.rounds.infinite_entries import InfiniteEntries, all_finite
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.membership import Directory, Members, sample_clients
from fedsuite.rounds.never_negative import NeverNegative
from fedsuite.rounds.quorum import Quorum, QuorumMissed
from fedsuite.rounds.recovery import Kept, Recovery
from fedsuite.rounds.remarks import (
    Remarks,
    tell_left,
    tell_replies,
    tell_sampled,
    tell_settings,
)
from fedsuite.rounds.report import FAILED, MetricMeans, PhaseReport
from fedsuite.rounds.requests import (
    CLIPPING_NORM,
    check_exchange,
    check_hello,
    completed,
    gathered,
    repeating,
    steering,
    with_infinite,
)
from fedsuite.rounds.selection import Selection
from fedsuite.rounds.server_optimizer import ServerOptimizer
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import ClientReply
from fedsuite.rounds.virtual_clock import Missed, VirtualClock
from fedsuite.workarounds.prompt_grid import PromptGrid

logger = ServerLogger(__name__)
own_logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 3600.0
"""Seconds that a round waits for replies, as in Flower."""


class RoundStrategy(MethodContract):
    """A strategy that runs a round at a time; what runs them all is its ``start``."""

    def __post_init__(self) -> None:
        """Check the keywords, and make what the rounds need."""
        super().__post_init__()
        self._refuse_strangers()
        self.directory = Directory(
            self.identity,
            self.num_clients,
            self.connect_timeout,
            self.source_hash,
            self.public_fingerprint,
            self.site_names,
            self.plug_ins,
            self.evaluation_only,
        )
        self.remarks = Remarks()
        self.guard = Guard(
            Limit.parse("max_examples", self.max_examples, BELIEVED_COUNT),
            Limit.parse("max_update_norm", self.max_update_norm, BELIEVED),
            self.remarks.bounded,
            ChainMap(dict(self.training_rows), self.directory.training_rows),
            largest_share=HALF if self.max_client_weight == AUTO else 1.0,
            bounds_training=not (self._has_noise or self.secure_aggregation != "off"),
        )
        own = {TRAIN: self.train_metrics_aggr_fn, EVALUATE: self.evaluate_metrics_aggr_fn}
        self.metric_means = {
            phase: MetricMeans(phase, own.get(phase), self.weighted_by_key)
            for phase in (TRAIN, EVALUATE, NEW)
        }
        self.judge = Quorum(self.quorum, self.max_failed_rounds)
        self.recovery = Recovery()
        self.first = FirstExchanges(type(self).__name__, self.NEEDS_OF_CLIENT)
        # What has a say in the server's step beside the method.
        self.step_stages = tuple(self._steps())
        self.privacy: CentralPrivacy | None = None
        if self._has_noise:
            weighted = self.released().kind == "weighted"
            weights = self.log_weights if weighted else None
            self.privacy = CentralPrivacy(self, self.seed, weights)
        self._noise = () if self.privacy is None else (self.privacy,)
        self.secure_sums: tuple[Stage, ...] = ()
        if self.secure_aggregation != "off":
            self.secure_sums = self._secure_sums()
        self.compression: tuple[Compressed | InBfloat16, ...] = ()
        if self._codes:
            self.compression = (Compressed(self, self),)
        elif self.halves:
            self.compression = (InBfloat16(self.halves),)
        self.virtual_clock = self._clock() if self.devices else None
        self.selector = self._selector() if self.selection != "uniform" else None
        self.pending: dict[str, ReplyReader] = {}
        # Number of the run's attempt, in names of versions; 0 adds none.
        self.attempt = 0
        self.server_round = 0
        # Client to the version of its state: the newest, and that of the last message.
        self.client_versions: dict[int, str] = {}
        self.start_versions: dict[int, str] = {}
        self.checkpoint_versions: list[Mapping[int, str]] = []
        self.kept_versions: dict[int, str] = {}
        self._exchange_index = 0
        self._grid: Grid | None = None
        self._members = Members([], {})
        self._given = self._record = ArrayRecord()
        self._arrays: Arrays = {}
        self._infinite: InfiniteEntries | None = None
        self._buffers: Collection[str] = ()
        # What a subclass of an app's may not take for something of its own.
        keys = {field.name for field in fields(self)}
        self._parts = frozenset(n for n in vars(self) if n[0] != "_" and n not in keys)
        self._clipped_by_flower = False
        # Methods of an app's subclass that were warned of.
        self._warned_of: set[str] = set()
        self._begun = False
        self._start_timeout = DEFAULT_TIMEOUT
        self.layer.attach(self)

    @property
    def _has_noise(self) -> bool:
        """Whether the server adds noise."""
        return bool(self.dp_noise_multiplier or self.target_epsilon)

    @property
    def _codes(self) -> bool:
        """Whether what travels is coded."""
        return any(self.codec(direction).is_on for direction in (UP, DOWN))

    def _refuse_strangers(self) -> None:
        """Refuse what only fedsuite's own clients can do, where clients may be others."""
        if self.devices and not (self.hosts_clients and self.num_clients):
            raise ValueError(
                f"devices = {self.devices!r} needs fedsuite's own clients, which tell "
                "their work: give identity = 'partition' and num_clients, or start the run "
                "by `fedsuite run`"
            )
        numbered = self.hosts_clients and self.wire == "message"
        if self.secure_aggregation != "off" and not numbered:
            raise ValueError(
                f"secure_aggregation = {self.secure_aggregation!r} needs clients with "
                "numbers, which legacy ones have not: give identity = 'partition', or "
                "site_names, and wire = 'message'"
            )
        if self._codes and self.halves:
            raise ValueError(
                "compress_up and compress_down: the network's bfloat16 arrays travel in 16 "
                "bits already: leave them out, or build it in float32"
            )
        if (self._codes or self.halves) and not numbered:
            raise ValueError(
                "compress_up, compress_down and halves need fedsuite's own clients: "
                "give identity = 'partition', or site_names, and wire = 'message'"
            )

    def _steps(self) -> Iterator[Stage]:
        if self.has_server_optimizer:
            yield ServerOptimizer(self)
        if self.buffers is None:
            # The network is unknown: see NeverNegative.
            yield NeverNegative()
        if self.fedvarp:
            yield UpdateMemory(lambda: len(self.members()))

    def _secure_sums(self) -> tuple[Stage, ...]:
        """Return what turns masked replies into their sum."""
        # Its cryptography takes a while to load.
        from fedsuite.rounds.secure_sums import SecureSums

        return (SecureSums(self, self.seed, self),)

    def _clock(self) -> VirtualClock:
        names, clients = dict(enumerate(self.site_names)), self.num_clients or 0
        world = World(self.devices, self.seed, names, clients)
        return VirtualClock(world, self.over_select, self.round_deadline)

    def _selector(self) -> Selection:
        ratio = self.selection_ratio
        return Selection(
            self.selection,
            self.seed,
            self.selection_candidates or 2 * self.clients_per_round,
            math.inf if isinstance(ratio, str) else ratio,
            lambda: self.guard.sizes,
            self.virtual_clock,
        )

    # ---------------------------------------------------------- a round, as Flower calls it

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round < self.server_round and self.privacy is None:
            # A loop of the app's own, or a wrapper, begins again.
            self.begin_afresh()
        if TRAIN in self.pending:
            # In a loop of the app's own nobody else would notice.
            self.tell_passed_by(self.server_round)
        self._buffers = names_of_buffers(self.buffers or (), arrays)
        self._clipped_by_flower = CLIPPING_NORM in config
        if self._clipped_by_flower:
            check_hello(self.identity)
        are_seen = self.privacy is None and not self.secure_sums
        one_model = self.trains_one_model() and are_seen
        kept = None
        if one_model:
            states = self._states(self._undone_with_the_model())
            kept = Kept(server_round - 1, arrays, states, {})
        self.recovery.begin(kept)
        travelling = self.layer.before_training(server_round, arrays)
        self._begin_round(server_round, travelling, grid)
        self.reports = {}
        self.round_metrics = {}
        # Before all exchanges of the round: a secure sum has one after that to train.
        self.start_versions = dict(self.client_versions)
        self.guard.begin()
        if self.fraction(TRAIN) == 0.0:
            return []
        try:
            return self._configure(TRAIN, config)
        except QuorumMissed as missed:
            self._miss(missed)
            return []

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if TRAIN not in self.pending:
            self._refuse_foreign(TRAIN, server_round, replies)
            return self._old_model(), None
        reader, report = self._popped(TRAIN), self.reports[TRAIN]
        counting = self.counting(TRAIN)
        take = self.take if self.privacy is None else self.privacy.take
        # An app may call this method in a loop of its own.
        with buffers_declared(self._buffers):
            try:
                for stage in (*counting, *self._noise):
                    stage.open(reader.exchange)
                self._average = self.averaging.begin()
                self.begin_aggregation(self._arrays)
                # One at a time: on the local engine each client trains now.
                for reply in flow(counting, self.delivered(reader, replies)):
                    if self._infinite is not None:
                        self._infinite.note(reply.infinite)
                    take(reply)
                report.num_asked = self.num_asked(reader)
                self.judge_first(reader)
                tell_replies("aggregate_train", len(report.rows), report.num_asked)
                if self._asks_nobody(reader):
                    self.discarded()
                    return self._old_model(), None
                new = self._stepped(self._reduced(report), report)
            except QuorumMissed as missed:
                self._miss(missed)
                return self._old_model(), None
            finally:
                report.bytes_up += reader.bytes_up
            if self.secure_sums:
                # Of one reply, the sum: of how many clients it is says summed_clients.
                self.round_metrics.pop("effective_clients", None)
            arrays = None if new is None else to_record(new)
            return self.layer.after_training(arrays), self.metric_means[TRAIN].record()

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.layer.before_evaluation(arrays)
        last = server_round == self.num_rounds or bool(self.time_is_up())
        skipped = server_round % self.evaluate_every and not last
        if self.fraction(EVALUATE) == 0.0:
            self.first.warn_of_unused(self.told(EVALUATE), server_round)
            return []
        if skipped:
            return []
        self._begin_round(server_round, arrays, grid)
        return self._configure(EVALUATE, config)

    @override
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        if EVALUATE not in self.pending:
            self._refuse_foreign(EVALUATE, server_round, replies)
            return None
        reader, report = self._popped(EVALUATE), self.reports[EVALUATE]
        counting = self.counting(EVALUATE)
        with buffers_declared(self._buffers):
            for reply in self.passed(reader, replies, EVALUATE):
                is_new = reply.client_id in self._members.evaluation_only
                through(self.counting(NEW) if is_new else counting, reply)
        self._count_asked(EVALUATE, reader.exchange)
        report.bytes_up += reader.bytes_up
        self.judge_first(reader)
        tell_replies("aggregate_evaluate", len(report.rows), report.num_asked)
        return self.metric_means[EVALUATE].record()

    @override
    def summary(self) -> None:
        if in_own_run():
            words = "%s: seed %d, quorum %d"
            own_logger.info(words, type(self).__name__, self.seed, self.quorum)
        else:
            tell_settings(self)

    # ---------------------------------------------------------------------------------- ask

    def _begin_round(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> None:
        if server_round != self.server_round:
            self._exchange_index = 0
        self.server_round, self._begun = server_round, True
        # In a loop of the app's own it is Flower's.
        self._grid = PromptGrid.around(grid)
        self._members = self.directory.wait(self._grid, max(self.min_available_nodes, 1))
        if self._members.evaluation_only and (why := self._no_model_for_new()):
            named = self._members.names
            new = [str(named.get(k, k)) for k in sorted(self._members.evaluation_only)]
            raise RunError(
                f"clients that only evaluate ({one_line(', '.join(new), 80)}) cannot go "
                f"with {type(self).__name__}: {why}: choose another method, or leave them "
                "out"
            )
        if arrays is not self._given:
            self._given, self._record = arrays, own_record(arrays)
            whole = to_arrays(self._record)
            self._arrays, self._infinite = whole, None
            if not all(map(all_finite, whole.values())):
                self._infinite = InfiniteEntries(whole)
                self._arrays = self._infinite.without(whole)

    def members(self) -> Sequence[int]:
        """Return all clients of the federation that train, ascending."""
        return self._members.training

    def _no_model_for_new(self) -> str:
        """Return why a client that never trains has no model; empty if it has one."""
        if self.values().get("personal-atoms"):
            return "each client keeps atoms of its own"
        return self.no_model_for_new()

    def drawn(self, phase: str) -> list[int]:
        """Return the clients that take part in a phase, of those that train, sorted."""
        members = self.members()
        if phase != TRAIN:
            return self.at_random(phase, members, self.num_drawn(phase, len(members)))
        if self.privacy is not None:
            count = self.num_drawn(phase, len(members))
            self.privacy.open_account(members, count, self.num_rounds)
            return self.privacy.draw(members, self.server_round)
        for stage in self.secure_sums:
            members = stage.trusted(members)
        awake = self.recovery.awake(members, self.server_round)
        count = self.num_drawn(phase, len(awake))
        if self.virtual_clock is not None:
            count = self.virtual_clock.to_ask(count)
        return self.chosen(self.those_there(awake), count)

    def those_there(self, client_ids: Sequence[int]) -> Sequence[int]:
        """Return those of some clients that are there; with devices wait for a quorum."""
        if self.virtual_clock is None:
            return client_ids
        return self.virtual_clock.wait_for(client_ids, self.quorum)

    def chosen(self, client_ids: Sequence[int], count: int) -> list[int]:
        """Return so many of the clients that may be asked to train, sorted.

        By the key ``selection``; a method that draws otherwise overrides :meth:`drawn`.
        """
        if self.selector is None:
            return self.at_random(TRAIN, client_ids, count)
        num_clients = len(self.members())
        return self.selector.draw(client_ids, count, self.server_round, num_clients)

    def at_random(self, phase: str, client_ids: Sequence[int], count: int) -> list[int]:
        """Return so many of some clients, drawn anew in each round of a phase, sorted."""
        purpose = f"sample-{phase}"
        return sample_clients(client_ids, count, self.seed, self.server_round, purpose)

    def _configure(self, phase: str, config: ConfigRecord) -> list[Message]:
        report = self.reports[phase] = PhaseReport(phase, self._members.names)
        self.remarks.begin(self.server_round, report)
        self.metric_means[phase].begin(report)
        client_ids = self.drawn(phase)
        report.num_asked = len(client_ids)
        new = sorted(self._members.evaluation_only) if phase == EVALUATE else []
        if new:
            self.reports[NEW] = PhaseReport(NEW, self._members.names, num_asked=len(new))
            self.metric_means[NEW].begin(self.reports[NEW])
            client_ids = sorted([*client_ids, *new])
        with buffers_declared(self._buffers):
            if phase == TRAIN:
                exchange = self.train_exchange(self._arrays, client_ids)
                for stage in (*self.step_stages, *self._noise):
                    exchange = stage.ask(exchange)
            else:
                exchange = self.evaluate_exchange(self._arrays, client_ids)
            exchange = repeating(self, exchange)
            exchange = replace(exchange, config={**config, **exchange.config})
            exchange = self.layer.ask(exchange)
            for stage in self.secure_sums if phase == TRAIN else ():
                exchange = stage.ask(exchange)
            reader, messages = self._open(exchange, phase)
        reader.note(messages)
        if phase == TRAIN and self.virtual_clock is not None:
            self.virtual_clock.closes = reader.group_id
        self.pending[phase] = reader
        self._count_asked(phase, exchange)
        tell_sampled(phase, len(exchange.client_ids), self._members)
        # Shuffled, so that the first few that an app takes are not always the same.
        stream = numpy_stream(self.seed, f"order-{phase}", self.server_round)
        return [messages[place] for place in stream.permutation(len(messages))]

    def _count_asked(self, phase: str, exchange: Exchange) -> None:
        """Count the clients that an exchange of a phase asks, new ones by themselves."""
        asked = set(exchange.client_ids)
        new = len(asked & self._members.evaluation_only)
        self.reports[phase].num_asked = len(asked) - new
        if new:
            self.reports[NEW].num_asked = new

    def _open(self, exchange: Exchange, phase: str) -> tuple[ReplyReader, list[Message]]:
        """Return the messages of an exchange and the reader for its replies."""
        if self._clipped_by_flower and phase == TRAIN:
            check_exchange(exchange, type(self).__name__)
        self._exchange_index += 1
        group_id = version_name(self.server_round, self._exchange_index, self.attempt)
        # Of fedsuite's own clients a loss that is no number is a model that diverged.
        diverged = {"loss"} if phase == EVALUATE and self._members.hosted else set()
        steered = steering(self) if phase == TRAIN else diverged
        exchange = completed(self, exchange, self.server_round, steered, self._infinite)
        sent = exchange
        for stage in self.compression:
            if self._infinite is not None:
                raise ConfigError(
                    "the model holds infinite entries, which no coded change and no "
                    "bfloat16 array can: leave compress-up and compress-down out, or build "
                    "it in float32"
                )
            exchange = stage.announced(exchange)
            sent = stage.sent(exchange)
        if self.virtual_clock is not None and sent is not exchange:
            coded = {client: sent.bytes_to(client) for client in sent.client_ids}
            exchange = replace(exchange, coded_bytes=coded)
        self.reports[phase].bytes_down += sent.bytes_down()
        members = gathered(sent, self._members, self._grid)
        whole = sent.shared.get(ARRAYS) is self._arrays
        keys = self.record_keys()
        messages = build_messages(
            sent if self._infinite is None else with_infinite(sent, self._infinite),
            members,
            self.wire,
            group_id,
            start_versions=self.client_versions,
            keep_versions=self.kept_versions,
            shared_record=self._record if whole else None,
            keys=keys,
        )
        return ReplyReader(exchange, members, self.wire, group_id, keys), messages

    def outgoing(self, phase: str, messages: Iterable[Message]) -> list[Message]:
        """Return what is sent of a phase: what configure_* returned, in client order.

        An overridden configure_* may leave messages out: their clients are not asked.
        """
        # A list: Flower's Grids may go through them twice.
        sent, reader = list(messages), self.pending.get(phase)
        if reader is None:
            return sent
        sampled = len(reader.exchange.client_ids)
        sent = reader.only(sent)
        asked = self.reports[phase].num_asked = len(reader.exchange.client_ids)
        if asked < sampled:
            tell_left(phase, type(self).__name__, asked)
            if phase == TRAIN and not asked:
                self._warn_once(
                    "configure_train",
                    f"configure_train of {type(self).__name__} leaves out all {sampled} "
                    "messages, so nobody trains: a choice of your own needs the messages "
                    "to all nodes, fraction_train=1.0",
                    self.server_round,
                )
        return sent

    def _popped(self, phase: str) -> ReplyReader:
        """Return the reader of a phase, which an overridden aggregate_* may give less."""
        reader, name = self.pending.pop(phase), f"aggregate_{phase}"
        if not self._is_ours(name):
            own = f"{name} of {type(self).__name__} left it out"
            reader.no_reply = f"{NO_REPLY}, or {own}"
        return reader

    def tell_passed_by(self, server_round: int) -> None:
        """Warn of replies to train that an overridden aggregate_train kept from the method.

        The run would else bear the name of a method that has no part in its model.
        """
        if self._is_ours("aggregate_train"):
            # A wrapper of Flower's, or a loop, has dropped a round.
            return
        if TRAIN in self.pending or self.server_round < server_round:
            ours = (c for c in type(self).__mro__ if c.__module__.startswith("fedsuite."))
            self._warn_once(
                "aggregate_train",
                f"aggregate_train of {type(self).__name__} did not call "
                f"super().aggregate_train: {next(ours).__name__} has no part in the model, "
                "and no reply is checked",
                server_round,
            )

    def _is_ours(self, method: str) -> bool:
        """Return whether no app has overridden a method; one of exec has no module."""
        module = getattr(getattr(type(self), method), "__module__", None)
        return str(module).startswith("fedsuite.")

    def _warn_once(self, method: str, words: str, server_round: int) -> None:
        """Warn of what a method of an app's subclass does, in the first such round."""
        if method not in self._warned_of:
            self._warned_of.add(method)
            logger.warning("round %d: %s", server_round, words)

    def converse(
        self, grid: Grid, messages: Iterable[Message], timeout: float
    ) -> Iterable[Message]:
        """Send the messages to train; return the replies with which the round closes."""
        return grid.send_and_receive(messages, timeout=timeout)

    def exchange(self, exchange: Exchange) -> Iterator[ClientReply]:
        """Make one more exchange inside the round; yield good replies in client order.

        :meth:`train_exchange` and :meth:`aggregate` may call this method; all replies must
        be taken before the next exchange. The round's report counts bad and missing replies
        to it too. Fewer good replies than the quorum end the round, and the model stays as
        it was.
        """
        if self._grid is None:
            raise RuntimeError("exchange() is for use inside a round")
        if self.privacy is not None:
            raise RuntimeError("under noise at the server a round has one exchange")
        exchange = self.layer.ask(repeating(self, exchange))
        reader, messages = self._open(exchange, TRAIN)
        report, good = self.reports[TRAIN], 0
        seconds = self.exchange_timeout
        seconds = self._start_timeout if seconds is None else seconds
        replies = self._grid.send_and_receive(messages, timeout=seconds)
        passed = self.passed(reader, replies, TRAIN)
        for reply in passed if self.virtual_clock is None else self._timed(passed):
            good += 1
            if self.selector is not None:
                self.selector.hear(reply)
            yield reply
        report.bytes_up += reader.bytes_up
        tell_replies(exchange.message_type, good, len(exchange.client_ids))
        self.judge_first(reader)
        self.judge.check(good, report)

    # -------------------------------------------------------------------- collect and check

    def delivered(
        self, reader: ReplyReader, messages: Iterable[Message]
    ) -> Iterator[ClientReply]:
        """Return the replies that the round's aggregation is of, in client order."""
        replies = self.passed(reader, messages, TRAIN)
        return replies if self.virtual_clock is None else self._timed(replies)

    def _timed(self, replies: Iterator[ClientReply]) -> Iterator[ClientReply]:
        """Yield replies, and let the virtual time of their exchange pass."""
        yield from replies
        assert self.virtual_clock is not None
        self.virtual_clock.end_exchange()

    def num_asked(self, reader: ReplyReader) -> int:
        """Return how many clients were asked for the replies that were delivered."""
        return len(reader.exchange.client_ids)

    def passed(
        self, reader: ReplyReader, messages: Iterable[Message], phase: str
    ) -> Iterator[ClientReply]:
        """Return the good replies to an exchange, one at a time, as the stages let them.

        A client may train when its reply is taken.
        """
        # The guard bounds a reply before anything counts it.
        stages = (self.remarks, self.guard)
        for stage in stages:
            stage.open(reader.exchange)
        clock, came = self.virtual_clock, reader.read(messages)
        outcomes: Iterable[ClientReply | Unused | Missed] = came
        if clock is not None and phase == TRAIN:
            outcomes = clock.timed(reader, came)

        def good(outcome: ClientReply | Unused | Missed) -> tuple[ClientReply, ...]:
            if isinstance(outcome, Unused):
                self.remarks.unused(outcome)
                return ()
            if isinstance(outcome, Missed):
                self.remarks.reject(*outcome)
                return ()
            if outcome.stored_state:
                self.client_versions[outcome.client_id] = reader.group_id
            self.layer.accepted(reader.exchange, outcome)
            for stage in self.compression:
                stage.accepted(reader.exchange, outcome)
            return (outcome,)

        return flow(stages, chain.from_iterable(map(good, outcomes)))

    def counting(self, phase: str) -> tuple[Stage, ...]:
        """Return what the replies that count go through: their rows, FedVARP, the layer.

        Where replies are summed, one goes on in place of all.
        """
        stages: tuple[Stage, ...] = (self.metric_means[phase],)
        if phase == TRAIN and self.privacy is None:
            stages += () if self.selector is None else (self.selector,)
            stages += (*self.secure_sums, *self.step_stages)
            if type(self.layer) is not ExchangeLayer:
                stages += (self.layer,)
        return stages

    def judge_first(self, reader: ReplyReader) -> None:
        """End the run if the first exchange of its kind shows that the run cannot work."""
        self.first.judge(reader, self.server_round, self.layer.needs(), self._members)

    def _refuse_foreign(
        self, phase: str, server_round: int, replies: Iterable[Message]
    ) -> None:
        """Refuse replies to messages that an overridden configure_* made by itself."""
        if any(True for _ in replies):
            raise RunError(
                f"round {server_round}: aggregate_{phase} of {type(self).__name__} got "
                "replies to messages that it did not make: call "
                f"super().configure_{phase}, and change the messages that it returns"
            )

    def _asks_nobody(self, reader: ReplyReader) -> bool:
        """Return whether an overridden configure_train left out all messages of a round."""
        nobody = reader.left_out and not reader.exchange.client_ids
        return nobody and not self.reports[TRAIN].rows and self.privacy is None

    # ---------------------------------------------------------------------- reduce and step

    def _reduced(self, report: PhaseReport) -> Arrays | None:
        """Return the arrays that the method, or the noised mean, makes of the replies."""
        if self.privacy is not None:
            rate = float(getattr(self, "server_learning_rate", 1.0))
            return self.privacy.release(self._arrays, self.server_round, rate)
        try:
            self.judge.check(len(report.rows), report)
            self.recovery.check(report)
            return self.aggregate(self._arrays)
        finally:
            self.guard.tell_norms(report)
            report.tell_clipped()

    def _stepped(self, new: Arrays | None, report: PhaseReport) -> Arrays | None:
        """Return the model after the server's step, None if it stays as it was."""
        if new is not None:
            for stage in (*self.step_stages, *self.compression):
                new = stage.step(self._arrays, new)
            if all(map(all_finite, new.values())):
                for stage in (*self.step_stages, *self.compression, self.guard):
                    stage.counted()
                self.recovery.note(report)
            else:
                reason = "the new model holds NaN or infinity: the old one stays"
                logger.warning("round %d: %s", self.server_round, reason)
                self.remarks.reject(None, Kind.MODEL_NOT_FINITE, reason)
                self.round_metrics[FAILED] = 1.0
                new = None
        if self.privacy is not None:
            self.round_metrics |= self.privacy.metrics
            if report.num_asked and not report.rows:
                self.round_metrics[FAILED] = 1.0
            self.judge.heard(self.server_round, report)
        else:
            self.judge.failed_rounds = 0
        if new is None:
            self.discarded()
            return None
        whole = new if self._infinite is None else self._infinite.of_new_model(new)
        self.counted(whole)
        return whole

    def _old_model(self) -> ArrayRecord | None:
        """Return what a round without a step ends with: None keeps the model as it is."""
        if self.recovery.model is not None:
            return self.recovery.model
        return self.layer.after_training(None)

    def _miss(self, missed: QuorumMissed) -> None:
        """Count a failed round; after a poisoned one the last good model comes back."""
        report = self.reports[TRAIN]
        last_refused = report.rejections[-1].reason if report.rejections else ""
        self.discarded()
        self.round_metrics[FAILED] = 1.0
        unsaid = report.rows and not report.rejections
        if unsaid or missed.kind is not Kind.QUORUM:
            # The replies were good, so no rejection says why.
            self.remarks.reject(None, missed.kind, missed.reason)
        if not self.recovery.must_go_back(report):
            self.judge.miss(self.server_round, missed, last_refused)
            return
        rest = self.suspect_rounds
        kept, story = self.recovery.go_back(self.server_round, report, rest)
        logger.warning("round %d: %s", self.server_round, story)
        self.restore_states(kept.states)
        self.round_metrics["went_back_to"] = float(kept.server_round)

    # --------------------------------------------------------------------------------- tell

    def time_is_up(self) -> str:
        """Return why no virtual time is left for another round; empty if there is some."""
        clock, stop = self.virtual_clock, self.stop_at_seconds
        if clock is None or not stop or clock.now < stop:
            return ""
        return (
            f"{clock.now:.0f} virtual seconds have passed, and stop-at-seconds = {stop:g}"
        )

    def keepers(self) -> tuple[Stage, ...]:
        """Return the stages that remember something from round to round."""
        of_run = (self.recovery, self.judge, self.layer, *self._noise, *self.secure_sums)
        coding = (stage for stage in self.compression if stage.name)
        of_world = (self.virtual_clock, self.selector)
        on = (stage for stage in of_world if stage is not None)
        return (*self._undone_with_the_model(), *of_run, *coding, *on)

    def _undone_with_the_model(self) -> tuple[Stage, ...]:
        """Return the stages whose memory goes back with the model that comes back."""
        return tuple(stage for stage in (*self.step_stages, self.guard) if stage.name)

    def states(self) -> State:
        """Return what the method and all stages remember, by name."""
        return self._states(self.keepers())

    def _states(self, stages: Iterable[Stage]) -> State:
        arrays, scalars = self.state()
        method = {"arrays": arrays, "scalars": scalars}
        return {"method": method, **{stage.name: stage.state() for stage in stages}}

    def restore_states(self, states: Mapping[str, Any]) -> None:
        """Take back what :meth:`states` returned; a stage that it lacks stays as it is."""
        self.restore(states["method"]["arrays"], states["method"]["scalars"])
        for stage in self.keepers():
            if stage.name in states:
                stage.restore(states[stage.name])

    def keep_states_of(self, checkpoints: Sequence[Mapping[int, str]]) -> None:
        """Have clients keep the versions of their state that these checkpoints need.

        Parameters
        ----------
        checkpoints
            Client to version, oldest checkpoint first.
        """
        self.checkpoint_versions = list(checkpoints)
        kept: dict[int, list[str]] = {}
        for versions in checkpoints:
            for client_id, version in versions.items():
                known = kept.setdefault(client_id, [])
                if version not in known:
                    known.append(version)
        self.kept_versions = {k: ",".join(known) for k, known in kept.items()}


def flow(stages: Sequence[Stage], replies: Iterable[ClientReply]) -> Iterator[ClientReply]:
    """Return what comes out of some stages for replies, and then what they held back."""
    return chain(chain.from_iterable(map(partial(through, stages), replies)), rest(stages))


def rest(stages: Sequence[Stage]) -> Iterator[ClientReply]:
    """Yield what some stages held back, as the stages behind let it."""
    for place, stage in enumerate(stages, 1):
        for held in stage.rest():
            yield from through(stages[place:], held)


def through(stages: Iterable[Stage], reply: ClientReply) -> list[ClientReply]:
    """Return what comes out of some stages for one reply."""
    replies = [reply]
    for stage in stages:
        replies = [passed for one in replies for passed in stage.reply(one)]
    return replies
