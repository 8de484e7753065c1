"""What is said of the replies to a phase's messages, in the log and in its report."""

from collections.abc import Iterable
from typing import ClassVar

from typing_extensions import override

from fedsuite.core.errors import one_line
from fedsuite.core.logs import ServerLogger, log_scope
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

    def begin(self, server_round: int, report: PhaseReport) -> None:
        """Hear of which round and report the next remarks are."""
        self._round, self._report = server_round, report

    @override
    def open(self, exchange: Exchange) -> None:
        kind = exchange.message_type
        self._prefix = "" if kind == self._report.phase else f"{kind}: "

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        """Say once a client and metric that a metric is left out, its reply not."""
        for metric, number in reply.left_out.items():
            self._report.left_out.setdefault(metric, set()).add(reply.client_id)
            if (reply.client_id, metric) not in self._left_out:
                self._left_out.add((reply.client_id, metric))
                self._warn(
                    reply.client_id,
                    f"metric {one_line(metric, 60)} is {number}: it is left out, here and "
                    "later, and all else in the reply counts",
                )
        if reply.converted and not self._converted:
            self._converted = True
            logger.warning(
                "round %d: a reply's floats are turned to the model's own: %s; later "
                "ones are too, without a word",
                self._round,
                reply.converted,
            )
        return (reply,)

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

    def bounded(self, client_id: int, change: str) -> None:
        """Tell of a reply of which less counts than it says."""
        rejection = Rejection(self._round, client_id, Kind.BOUNDED, change)
        self._report.bounded.append(rejection)
        self._warn(client_id, change)

    def _warn(self, client_id: int, text: str, words: str = "%s: %s") -> None:
        name = self._report.names.get(client_id, client_id)
        with log_scope(client=name):
            logger.warning(f"round %d: client {words}", self._round, name, text)
