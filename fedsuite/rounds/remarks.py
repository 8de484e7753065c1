"""What is said of the replies to a phase's messages, in the log and in its report."""

import math
from collections.abc import Iterable
from typing import ClassVar

from typing_extensions import override

from fedsuite.core.errors import one_line
from fedsuite.core.logs import ServerLogger, log_scope
from fedsuite.core.metrics import is_accuracy
from fedsuite.rounds.exchange import Exchange, Rejection, Unused
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.stage import Stage
from fedsuite.rounds.validation import ClientReply

logger = ServerLogger(__name__)


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
                "ones are too, without a word",
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
                f"{reason}: it is left out, here and later, and all else in the reply "
                f"counts{others}",
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
