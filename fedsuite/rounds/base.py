"""The strategy that all methods stand on.

A method overrides :meth:`FederatedStrategy.train_exchange`, which says what is sent and
what must come back, and :meth:`FederatedStrategy.aggregate`, which reduces the replies.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from typing_extensions import override

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.logs import ServerLogger, log_scope
from fedsuite.messages.array_records import own_record, to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    SERVER_ROUND,
    TRAIN,
    Arrays,
)
from fedsuite.messages.versions import version_name
from fedsuite.rounds.central_privacy import CentralPrivacy
from fedsuite.rounds.exchange import (
    Exchange,
    Rejection,
    ReplyReader,
    build_messages,
)
from fedsuite.rounds.flower_clipping import CLIPPING_NORM, check_exchange, check_hello
from fedsuite.rounds.gathering import gathered
from fedsuite.rounds.infinite_entries import InfiniteEntries, all_finite
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.loop import RoundLoop
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.recovery import NO_TRAINING
from fedsuite.rounds.report import FAILED, PhaseReport
from fedsuite.rounds.telling import tell_replies, tell_sampled, tell_settings
from fedsuite.rounds.validation import BadReply, ClientReply, Expected
from fedsuite.workarounds.prompt_grid import PromptGrid

logger = ServerLogger(__name__)


class FederatedStrategy(RoundLoop):
    """Base of all strategies."""

    @classmethod
    def of_paper(cls, **given: Any) -> Self:
        """Return the strategy with its paper's values, where the defaults are others.

        Parameters
        ----------
        **given
            Keywords of the constructor, which win.
        """
        values = {name.replace("-", "_"): value for name, value in cls.PAPER.items()}
        return cls(**values | given)

    # ------------------------------------------------------------------- for methods to use

    def members(self) -> Sequence[int]:
        """Return all clients of the federation in this round, ascending."""
        return self._members.client_ids

    def exchange(self, exchange: Exchange) -> Iterator[ClientReply]:
        """Make one more exchange inside the round; yield good replies in client order.

        :meth:`train_exchange` and :meth:`aggregate` may call this method. The round's
        report counts bad and missing replies to it too. Fewer good replies than the quorum
        end the round, and the model stays as it was.
        """
        if self._grid is None:
            raise RuntimeError("exchange() is for use inside a round")
        if self.privacy is not None:
            raise RuntimeError("under noise at the server a round has one exchange")
        exchange = self.layer.outgoing(self._asking(exchange))
        reader, messages = self._open(exchange, TRAIN)
        report = self.reports[TRAIN]
        report.bytes_down += exchange.bytes_down()
        good = 0
        replies = self._grid.send_and_receive(messages, timeout=self.exchange_timeout)
        for reply in self.guarded(reader, replies, report):
            good += 1
            yield reply
        report.bytes_up += reader.bytes_up
        tell_replies(exchange.message_type, good, len(exchange.client_ids))
        self._judge_first(reader)
        self.judge.check(good, report)

    # ------------------------------------------------------------- for methods to override

    def drawn(self, phase: str) -> list[int]:
        """Return the clients that take part in a phase, sorted."""
        members, sampling = self.members(), self.sampling[phase]
        if phase != TRAIN or self.privacy is None:
            return sampling.draw(members, self.server_round)
        self.privacy.open(members, sampling.count(len(members)), self.num_rounds)
        return self.privacy.draw(members, self.server_round)

    def delivered(
        self, reader: ReplyReader, replies: Iterable[Message], report: PhaseReport
    ) -> Iterator[ClientReply]:
        """Yield the replies that the round's aggregation is of, in client order."""
        return self.guarded(reader, replies, report)

    # ------------------------------------------------------------------- Flower's contract

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._clipped_by_flower = CLIPPING_NORM in config
        if self._clipped_by_flower:
            check_hello(self.identity)
        one_model = self.trains_one_model() and self.privacy is None
        self.recovery.begin(self._kept(server_round, arrays) if one_model else None)
        travelling = self.layer.before_training(server_round, arrays)
        self._begin_round(server_round, travelling, grid)
        self.reports = {}
        self.round_metrics = {}
        self.update_norms.begin()
        if self.sampling[TRAIN].fraction == 0.0:
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
        arrays, metrics = self._reduced(server_round, replies)
        if self.recovery.model is not None:
            return self.recovery.model, None
        return self.layer.after_training(arrays), metrics

    def _reduced(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what the strategy itself makes of the replies."""
        if TRAIN not in self._pending:
            self._refuse_foreign(TRAIN, server_round, replies)
            return None, None
        reader, report = self._pending.pop(TRAIN), self.reports[TRAIN]
        if self.privacy is not None:
            # Bounds by the others' replies would change what one client can move.
            read = self._count(reader.read(replies), report)
            return self._noised(self.privacy, reader, read)
        counted = self._count(self.delivered(reader, replies, report), report)
        corrected = self.extras.correct(counted, len(self._members.client_ids))
        try:
            arrays = self.aggregate(self._arrays, self.layer.incoming(corrected))
            self._judge_first(reader)
            tell_replies("aggregate_train", len(report.rows), report.num_asked)
            self.judge.check(len(report.rows), report)
        except QuorumMissed as missed:
            self._miss(missed)
            return None, None
        finally:
            report.bytes_up += reader.bytes_up
            self.update_norms.tell(report)
            report.tell_clipped()
        if self.recovery.must_go_back(report):
            self._miss(QuorumMissed(Kind.NO_TRAINING, 0, *NO_TRAINING))
            return None, None
        doubtful = False
        if arrays is not None:
            arrays = self._counted_step(arrays, report)
        if arrays is not None:
            doubtful = self.recovery.counted(self._arrays, arrays, report)
        if not doubtful:
            self.judge.failed_rounds = 0
        return self._new_record(arrays), self._means[TRAIN].record(report)

    def _new_record(self, arrays: Arrays | None) -> ArrayRecord | None:
        """Return the new model as it travels."""
        if arrays is None:
            return None
        whole = self._infinite.of_new_model(arrays) if self._infinite else arrays
        return to_record(whole)

    def _miss(self, missed: QuorumMissed) -> None:
        """Count a failed round; after a poisoned one the last good model comes back."""
        report = self.reports[TRAIN]
        self.round_metrics[FAILED] = 1.0
        unsaid = report.rows and not report.rejections
        if unsaid or missed.kind is not Kind.QUORUM:
            # The replies were good, so no rejection says why.
            report.rejections.append(
                Rejection(self.server_round, None, missed.kind, missed.reason)
            )
        if not self.recovery.must_go_back(report):
            self.judge.miss(self.server_round, missed)
            return
        kept, story = self.recovery.go_back(self.server_round, report)
        logger.warning("round %d: %s", self.server_round, story)
        self.restore(kept.method, kept.scalars)
        self.extras.restore(self.guard.restore(kept.extra))
        self.round_metrics["went_back_to"] = float(kept.server_round)
        self.judge.miss(self.server_round, missed, "the last good model comes back")

    def _noised(
        self, privacy: CentralPrivacy, reader: ReplyReader, counted: Iterator[ClientReply]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the noised model; the method's own aggregation has no part in it."""
        server_round, report = self.server_round, self.reports[TRAIN]
        try:
            privacy.gather(counted, self.log_weights)
            self._judge_first(reader)
        finally:
            report.bytes_up += reader.bytes_up
        tell_replies("aggregate_train", len(report.rows), report.num_asked)
        rate = float(getattr(self, "server_learning_rate", 1.0))
        made = privacy.release(self._arrays, server_round, rate)
        self.round_metrics |= privacy.metrics
        arrays = self._counted_step(made, report)
        if report.num_asked and not report.rows:
            self.round_metrics[FAILED] = 1.0
        self.judge.heard(server_round, report)
        return self._new_record(arrays), self._means[TRAIN].record(report)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.layer.before_evaluation(arrays)
        last = server_round == self.num_rounds
        skipped = server_round % self.evaluate_every and not last
        if self.sampling[EVALUATE].fraction == 0.0:
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
        if EVALUATE not in self._pending:
            self._refuse_foreign(EVALUATE, server_round, replies)
            return None
        reader, report = self._pending.pop(EVALUATE), self.reports[EVALUATE]
        for _ in self._count(self.guarded(reader, replies, report), report):
            pass
        report.bytes_up += reader.bytes_up
        self._judge_first(reader)
        tell_replies("aggregate_evaluate", len(report.rows), report.num_asked)
        return self._means[EVALUATE].record(report)

    @override
    def summary(self) -> None:
        tell_settings(self)

    # --------------------------------------------------------------------------- machinery

    def _begin_round(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> None:
        if server_round != self.server_round:
            self._exchange_index = 0
        self.server_round = server_round
        # In a loop of the app's own it is Flower's.
        self._grid = PromptGrid.around(grid)
        self._members = self.directory.wait(self._grid, self.min_available_nodes)
        if arrays is not self._given:
            self._given, self._record = arrays, own_record(arrays)
            whole = to_arrays(self._record)
            self._infinite = InfiniteEntries(whole)
            self._arrays = self._infinite.without(whole) if self._infinite else whole

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

    def _counted_step(self, made: Arrays, report: PhaseReport) -> Arrays | None:
        """Return the model after the server's step, None if it cannot be used."""
        arrays = self.extras.step(self._arrays, made)
        if all(map(all_finite, arrays.values())):
            self.extras.commit()
            return arrays
        reason = "the new model holds NaN or infinity: the old one stays"
        logger.warning("round %d: %s", self.server_round, reason)
        report.rejections.append(
            Rejection(self.server_round, None, Kind.MODEL_NOT_FINITE, reason)
        )
        self.round_metrics[FAILED] = 1.0
        return None

    def _configure(self, phase: str, config: ConfigRecord) -> list[Message]:
        self.reports[phase] = PhaseReport(phase, self._members.names)
        client_ids = self.drawn(phase)
        self.reports[phase].num_asked = len(client_ids)
        if phase == TRAIN:
            exchange = self.train_exchange(self._arrays, client_ids)
            self.extras.begin(exchange)
            if self.privacy is not None:
                self.privacy.begin(exchange)
        else:
            exchange = self.evaluate_exchange(self._arrays, client_ids)
        exchange = self._asking(exchange)
        exchange = replace(exchange, config={**config, **exchange.config})
        exchange = self.layer.outgoing(exchange)
        self._pending[phase], messages = self._open(exchange, phase)
        self.reports[phase].bytes_down += exchange.bytes_down()
        self.reports[phase].num_asked = len(exchange.client_ids)
        tell_sampled(phase, len(exchange.client_ids), self._members)
        return messages

    def _open(self, exchange: Exchange, phase: str) -> tuple[ReplyReader, list[Message]]:
        """Return the messages of an exchange and the reader for its replies."""
        if self._clipped_by_flower and phase == TRAIN:
            check_exchange(exchange, type(self).__name__)
        self._exchange_index += 1
        group_id = version_name(self.server_round, self._exchange_index, self.attempt)
        exchange = replace(
            exchange,
            config={**exchange.config, SERVER_ROUND: self.server_round},
            expected=self._limited(exchange.expected, phase),
            expected_of={
                k: self._limited(e, phase) for k, e in exchange.expected_of.items()
            },
        )
        whole = exchange.shared.get(ARRAYS) is self._arrays
        members = gathered(exchange, self._members, self._grid)
        sent = exchange
        if self._infinite:
            self._refuse_nan(exchange)
            sent = replace(
                exchange,
                shared=self._infinite.records(exchange.shared),
                own={k: self._infinite.records(own) for k, own in exchange.own.items()},
            )
        messages = build_messages(
            sent,
            members,
            self.wire,
            group_id,
            start_versions=self.client_versions,
            keep_versions=self.kept_versions,
            shared_record=self._record if whole else None,
            keys=self._keys,
        )
        extra = "" if exchange.message_type == phase else f"{exchange.message_type}: "

        def reject(client_id: int | None, bad: BadReply) -> None:
            reason = extra + one_line(bad)
            rejection = Rejection(self.server_round, client_id, bad.kind, reason)
            # A reply may come in a later round, whose report tells of it.
            self.reports[phase].rejections.append(rejection)
            unused = "round %d: %s not used: %s"
            if client_id is None:
                logger.warning(unused, self.server_round, "a client", reason)
                return
            name = self._members.names.get(client_id, client_id)
            with log_scope(client=name):
                logger.warning(unused, self.server_round, f"client {name}", reason)

        def accept(reply: ClientReply) -> None:
            if exchange.message_type == TRAIN:
                self.update_norms.take(exchange, reply)
                self._infinite.note(reply.infinite)
            self._tell_left_out(reply, phase)
            if reply.stored_state:
                self.client_versions[reply.client_id] = group_id
            if reply.converted and not self._told_conversion:
                self._told_conversion = True
                logger.warning(
                    "round %d: a reply's floats are turned to the model's own: %s; later "
                    "ones are too, without a word",
                    self.server_round,
                    reply.converted,
                )
            self.layer.accepted(exchange, reply)

        reader = ReplyReader(
            exchange, members, self.wire, group_id, accept, reject, self._keys
        )
        return reader, messages

    def _refuse_nan(self, exchange: Exchange) -> None:
        """Refuse to send what no reply could be told from a broken one by."""
        records = [exchange.expected, *exchange.expected_of.values()]
        back = {n for of in records for spec in of.arrays.values() for n in spec}
        if nan := sorted(self._infinite.holding_nan & back):
            raise RunError(
                f"array {nan[0]} of the model that is sent holds NaN, as a broken model's "
                "does: give another value where there is none, such as 0 or infinity"
            )

    def _tell_left_out(self, reply: ClientReply, phase: str) -> None:
        """Say once a client and metric that a metric is left out, its reply not."""
        for name, number in reply.left_out.items():
            self.reports[phase].left_out.setdefault(name, set()).add(reply.client_id)
            if (reply.client_id, name) in self._told_left_out:
                continue
            self._told_left_out.add((reply.client_id, name))
            client = self._members.names.get(reply.client_id, reply.client_id)
            with log_scope(client=client):
                logger.warning(
                    "round %d: client %s: metric %s is %s: it is left out, here and later, "
                    "and all else in the reply counts",
                    self.server_round,
                    client,
                    one_line(name, 60),
                    number,
                )

    def _judge_first(self, reader: ReplyReader) -> None:
        """End the run if the first exchange of its kind shows that the run cannot work."""
        self.first.judge(reader, self.server_round, self.layer.needs(), self._members)

    def _asking(self, exchange: Exchange) -> Exchange:
        """Return an exchange whose replies are to repeat the method's settings.

        Only where any app could answer: else the form of a reply shows its client.
        """
        if self.NEEDS_OF_CLIENT.stores or not exchange.is_plain:
            return exchange
        values = {name: getattr(self, name.replace("-", "_")) for name in self._TOLD}
        sent = {k: value for k, value in values.items() if k in exchange.config}
        expected = replace(exchange.expected, settings=sent)
        return replace(exchange, expected=expected)

    def _steering(self, phase: str) -> Collection[str]:
        """Return the columns that the method or the run is steered by, where they come."""
        own = f"{phase}_"
        chosen = {m.removeprefix(own) for m in self.chosen_by if m.startswith(own)}
        if phase == EVALUATE:
            # Of fedsuite's own clients a loss that is no number is a model that diverged.
            return chosen | {"loss"} if self._members.hosted else chosen
        needed = {*(need.name for need in self.NEEDS_OF_CLIENT.metrics), *self.claims()}
        return chosen | {name.replace("-", "_") for name in needed}

    def _limited(self, expected: Expected, phase: str) -> Expected:
        return replace(
            expected,
            weight_key=self.weighted_by_key,
            steering=self._steering(phase),
            infinite=self._infinite,
            advice=expected.advice or self.NEEDS_OF_CLIENT.advice,
            advice_of={need.name: need.advice for need in self.NEEDS_OF_CLIENT.metrics},
        )

    def guarded(
        self, reader: ReplyReader, replies: Iterable[Message], report: PhaseReport
    ) -> Iterator[ClientReply]:
        """Yield the good replies as the guard lets them through."""

        def told(client_id: int, change: str) -> None:
            report.bounded.append(
                Rejection(self.server_round, client_id, Kind.BOUNDED, change)
            )
            name = self._members.names.get(client_id, client_id)
            with log_scope(client=name):
                logger.warning("round %d: client %s: %s", self.server_round, name, change)

        return self.guard.checked(reader.exchange, reader.read(replies), told)

    def _count(
        self, replies: Iterator[ClientReply], report: PhaseReport
    ) -> Iterator[ClientReply]:
        means = self._means[report.phase]
        means.begin()
        for reply in replies:
            report.add(reply)
            means.take(reply)
            yield replace(reply, content={})
