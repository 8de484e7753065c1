"""What is said of a round: in the log, in its report, and in somebody else's Flower app.

The log and the report hear of each reply that is not used as it came. An app of Flower's
hears what Flower's strategies tell; a run of fedsuite has its own words for it
(:mod:`fedsuite.callbacks.progress`).
"""

import math
from collections.abc import Iterable
from typing import ClassVar

from typing_extensions import override

from fedsuite.core.errors import one_line
from fedsuite.core.logs import ServerLogger, log_scope
from fedsuite.core.metrics import is_accuracy
from fedsuite.rounds.contract import MethodContract
from fedsuite.rounds.exchange import Exchange, Rejection, Unused
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.membership import Members
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.stage import Stage
from fedsuite.rounds.validation import ClientReply

logger = ServerLogger(__name__)
tell = logger.tell


class Remarks(Stage):
    """Tells of replies that are not used, bounded, converted, or lack a number."""

    name: ClassVar[str] = "remarks"

    def __init__(self) -> None:
        self._report = PhaseReport("")
        self._round = 0
        self._prefix = ""
        self._converted = False
        self._left_out: set[tuple[int, str]] = set()
        self._new: list[tuple[int, str]] = []

    def begin(self, server_round: int, report: PhaseReport) -> None:
        """Hear of which round and report the next remarks are."""
        self._round, self._report = server_round, report

    @override
    def open(self, exchange: Exchange) -> None:
        kind = exchange.message_type
        self._prefix = "" if kind == self._report.phase else f"{kind}: "

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        """Take note of the metrics that are left out of a reply, which counts."""
        for metric, number in reply.left_out.items():
            self._report.left_out.setdefault(metric, {})[reply.client_id] = number
            if (reply.client_id, metric) not in self._left_out:
                self._left_out.add((reply.client_id, metric))
                self._new.append((reply.client_id, why_left_out(metric, number)))
        if reply.converted and not self._converted:
            self._converted = True
            logger.warning(
                "round %d: a reply's floats are turned to the model's own: %s; later "
                "ones are too, without a word; to send what clients send, start from "
                "arrays of their type",
                self._round,
                reply.converted,
            )
        return (reply,)

    @override
    def rest(self) -> Iterable[ClientReply]:
        """Say once a client and metric what is left out, in one line an exchange."""
        new, self._new = self._new, []
        if new:
            client_id, reason = new[0]
            others = f" (and {len(new) - 1} such metrics more)" if len(new) > 1 else ""
            self._warn(
                client_id,
                f"{reason}: it is left out of the means, here and later, and all else in "
                f"the reply counts{others}",
            )
        return ()

    def unused(self, unused: Unused) -> None:
        """Tell of a reply to an exchange that is not used."""
        self.refuse(unused.client_id, unused.bad.kind, self._prefix + one_line(unused.bad))

    def refuse(self, client_id: int | None, kind: Kind, reason: str) -> None:
        """Tell of a reply that is not used, in these words."""
        self.reject(client_id, kind, reason)
        if client_id is None:
            line = "round %d: %s not used: %s"
            logger.warning(line, self._round, "a client", reason)
        else:
            self._warn(client_id, reason, "%s not used: %s")

    def reject(self, client_id: int | None, kind: Kind, reason: str) -> None:
        """Put a reply, or a round without a client, among what was not used."""
        rejection = Rejection(self._round, client_id, kind, reason)
        self._report.rejections.append(rejection)

    def bounded(self, client_id: int | None, change: str) -> None:
        """Tell of a reply of which less counts than it says; of None no client is named."""
        rejection = Rejection(self._round, client_id, Kind.BOUNDED, change)
        self._report.bounded.append(rejection)
        if client_id is None:
            logger.warning("round %d: a client: %s", self._round, change)
        else:
            self._warn(client_id, change)

    def _warn(self, client_id: int, text: str, words: str = "%s: %s") -> None:
        name = self._report.names.get(client_id, client_id)
        with log_scope(client=name):
            logger.warning(f"round %d: client {words}", self._round, name, text)


def why_left_out(metric: str, number: float) -> str:
    """Return why a metric of a reply does not count."""
    words = f"metric {one_line(metric, 60)} is {number:g}"
    if not math.isfinite(number):
        return words
    fraction = is_accuracy(metric.replace("-", "_"))
    needed = "a fraction from 0 to 1" if fraction else "a number from 0"
    return f"{words}, where {needed} is expected"


def tell_settings(strategy: MethodContract) -> None:
    """Tell the settings of a strategy, as Flower's own do."""
    tell("\t├──> Sampling (seed %d):", strategy.seed)
    shares = strategy.fraction_train, strategy.fraction_evaluate
    least = strategy.min_train_nodes, strategy.min_evaluate_nodes
    tell("\t│\t├── Fraction: train (%.2f) | evaluate (%.2f)", *shares)
    tell("\t│\t├── Minimum nodes: train (%d) | evaluate (%d)", *least)
    awaited = str(strategy.min_available_nodes)
    if strategy.hosts_clients:
        awaited = f"all ({awaited} has no effect with {strategy.identity!r})"
    tell("\t│\t└── Minimum available nodes: %s", awaited)
    tell("\t├──> Needed of clients: %s", strategy.NEEDS_OF_CLIENT.words)
    tell("\t├──> Least number of good replies: %d", strategy.quorum)
    tell("\t└──> Keys in records:")
    tell("\t\t├── Weighted by: '%s'", strategy.weighted_by_key)
    tell("\t\t├── ArrayRecord key: '%s'", strategy.arrayrecord_key)
    tell("\t\t└── ConfigRecord key: '%s'", strategy.configrecord_key)


def tell_sampled(phase: str, sampled: int, members: Members) -> None:
    """Tell how many were asked."""
    who = "clients" if members.hosted else "nodes"
    total = len(members.client_ids)
    tell("configure_%s: Sampled %d %s (out of %d)", phase, sampled, who, total)


def tell_left(phase: str, strategy: str, going: int) -> None:
    """Tell how many of the sampled an overridden method asks."""
    tell("configure_%s: %s asks %d of them", phase, strategy, going)


def tell_replies(name: str, good: int, asked: int) -> None:
    """Tell how many of those who were asked gave a reply that was used."""
    tell("%s: Received %d results and %d failures", name, good, asked - good)
