"""What the first exchange of a run tells of the app at the clients.

A run whose clients can never give what the method needs is not to go on for rounds.
"""

import re

from fedsuite.messages.records import EVALUATE, TRAIN
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import HANDLER, ReplyReader
from fedsuite.rounds.validation import Missing, one_line, with_advice

_CODE_ERROR = re.compile(r"\b(Assertion|Attribute|Index|Key|Runtime|Type|Value)Error\b")
"""What clients raise that cannot read a message; a full disk may be well a round later."""


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
    if isinstance(failure, Missing):
        # An app without evaluation trains all the same, as under Flower's strategies.
        return "" if (kind, failure.what) == (EVALUATE, HANDLER) else one_line(failure, 600)
    if own_clients or not needs.client or kind == EVALUATE:
        return ""
    if failure is not None and _CODE_ERROR.search(str(failure)):
        advice = reader.exchange.expected.advice
        return one_line(with_advice(f"all clients failed: {failure}", advice), 600)
    if kind == TRAIN and needs.stores and reader.num_good and not reader.any_stored:
        reason = "no client says that it keeps anything (metric 'stored-state' is missing)"
        return with_advice(reason, needs.advice)
    return ""
