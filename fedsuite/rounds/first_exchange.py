"""What the first exchange of a run tells of the app at the clients.

A run whose clients can never give what the method needs is not to go on for rounds.
"""

from collections.abc import Mapping

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.keys import Value
from fedsuite.core.logs import ServerLogger
from fedsuite.messages.records import EVALUATE, TRAIN
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import ReplyReader
from fedsuite.rounds.kinds import UNABLE, Kind
from fedsuite.rounds.membership import Members
from fedsuite.rounds.validation import OTHER_NAMES, with_advice

logger = ServerLogger(__name__)

_SHOWN = 5
"""How many clients a warning names."""


_START = "clients have to send back the arrays that they are sent, so start from those"


class FirstExchanges:
    """Judges the first exchange of each kind, and warns of clients, once for each kind.

    Parameters
    ----------
    method
        Name of the strategy's class.
    needs
        What the method needs of clients.
    """

    def __init__(self, method: str, needs: ClientNeeds) -> None:
        self._method = method
        self._needs = needs
        self._answered: set[str] = set()
        self._warned: set[str] = set()

    def judge(
        self,
        reader: ReplyReader,
        server_round: int,
        of_layer: ClientNeeds | None,
        members: Members,
    ) -> None:
        """End a run that cannot work; warn of clients that do not say they do their part.

        Parameters
        ----------
        reader
            Has read the replies to an exchange.
        server_round
            The round.
        of_layer
            What the layer needs of clients, in the method's place.
        members
            The clients of the federation.

        Raises
        ------
        RunError
            Naming the round, the method, and what to do.
        """
        kind, where = reader.exchange.message_type, f"round {server_round}: {self._method}"
        if kind not in self._answered:
            if reader.num_good:
                self._answered.add(kind)
            reason = first_refusal(reader, of_layer or self._needs, members.hosted)
            if reason := reason or refusal_of_unfollowed(reader, self._needs):
                raise RunError(f"{where}: {reason}")
        if kind == EVALUATE and lacks_handler(reader):
            self.warn_of_unused(reader.exchange.expected.settings, server_round)
        if reader.unfollowed and kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s: %s", where, unfollowed(reader, self._needs, members.names))

    def warn_of_unused(self, settings: Mapping[str, Value], server_round: int) -> None:
        """Warn, once, of settings for an evaluation that does not take place."""
        if not settings or EVALUATE in self._warned:
            return
        self._warned.add(EVALUATE)
        logger.warning(
            "round %d: %s: no client evaluates, so that %s has no effect there: let "
            "clients evaluate, or train with FedAvg",
            server_round,
            self._method,
            ", ".join(f"{name} = {value}" for name, value in settings.items()),
        )


def first_refusal(reader: ReplyReader, needs: ClientNeeds, own_clients: bool) -> str:
    """Return why a run cannot work, and what mends it; empty if it may.

    Parameters
    ----------
    reader
        Has read the replies to the first exchange of its kind.
    needs
        What the method needs of clients.
    own_clients
        Whether the nodes have said that their clients are fedsuite's: what these lack is
        not another client class.
    """
    kind = reader.exchange.message_type
    failure = reader.common_failure()
    if failure is not None and failure.kind in UNABLE:
        # An app without evaluation trains all the same, as under Flower's strategies.
        unevaluated = kind == EVALUATE and lacks_handler(reader)
        if failure.what == OTHER_NAMES and not reader.exchange.expected.advice:
            return one_line(f"{failure}: {_START}", 600)
        return "" if unevaluated else one_line(failure, 600)
    fails = failure is not None and failure.kind is Kind.CLIENT_ERROR
    if own_clients:
        # One client's code may fail by its data alone.
        alike = fails and reader.num_failed > 1
        return one_line(f"all clients failed alike: {failure}", 600) if alike else ""
    if not needs.client or kind == EVALUATE:
        return ""
    if fails:
        advice = reader.exchange.expected.advice
        return one_line(with_advice(f"all clients failed: {failure}", advice), 600)
    if kind == TRAIN and needs.stores and reader.num_good and not reader.any_stored:
        reason = "no client says that it keeps anything (metric 'stored-state' is missing)"
        own = "a client of your own that does so sends stored-state = 1 in its metrics"
        return with_advice(reason, f"{needs.advice}; {own}")
    return ""


def lacks_handler(reader: ReplyReader) -> bool:
    """Return whether the app at the clients has no function for such messages."""
    failure = reader.common_failure()
    return failure is not None and failure.kind is Kind.NO_HANDLER


def refusal_of_unfollowed(reader: ReplyReader, needs: ClientNeeds) -> str:
    """Return why a run is another method's: no reply repeats the method's settings.

    Empty if some client repeats them, and where the method trusts the app.
    """
    silent = [said for said in reader.unfollowed.values() if None in said.values()]
    if needs.trusted or not silent or len(silent) < reader.num_good:
        return ""
    return unfollowed(reader, needs, {})


def unfollowed(reader: ReplyReader, needs: ClientNeeds, names: Mapping[int, str]) -> str:
    """Return who does not say that it followed the settings of the message, and the remedy.

    Parameters
    ----------
    reader
        Has read the replies.
    needs
        What the method needs of clients.
    names
        Client to its name, where it has one.
    """
    lacking = reader.unfollowed
    values = reader.exchange.expected.settings
    settings = {
        k: v for k, v in values.items() if any(k in said for said in lacking.values())
    }
    what = ", ".join(f"{name} = {value}" for name, value in settings.items())
    who = f"none of {len(lacking)} clients says that it"
    if len(lacking) < reader.num_good:
        shown = [str(names.get(k, k)) for k in sorted(lacking)[:_SHOWN]]
        more = [f"{len(lacking) - _SHOWN} more"] * (len(lacking) > _SHOWN)
        who = f"{len(lacking)} of {reader.num_good} clients ({', '.join(shown + more)})"
        who = f"{who} do not say that they"
    others = [
        f"{name} = {one_line(value, 40)}"
        for said in lacking.values()
        for name, value in said.items()
        if value is not None
    ]
    instead = f" (but {others[0]})" if others else ""
    reason = f"{who} followed {what}{instead}, without which this is another method"
    return one_line(with_advice(reason, needs.advice_on(settings)), 600)
