"""Messages between server and clients, packed into Flower's records.

Both sides import this module and nothing of each other. A *node* is a Flower node. A
*client* is a participant of the federation. One node may host several clients. There are
two layouts:

- *single*: one client per node, as in Flower's quickstarts. A request has an ArrayRecord
  ``arrays`` and a ConfigRecord ``config``. A reply has an ArrayRecord ``arrays`` and a
  MetricRecord ``metrics``, and a ConfigRecord ``followed`` that repeats the settings of
  the request which the client reads, if there are any.
- *hosted*: ``config`` lists ``client-ids``. Shared arrays travel once. Records of one
  client are named ``client-ID.NAME``. The reply has one entry per client: the client's
  records, or ``client-ID.error``. In the single layout a record called ``error`` is the
  app's own.

``fedsuite.messages.legacy`` translates the single layout to Flower's legacy NumPyClient
records.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsuite.messages.array_records import (
    RecordError,
    filled,
    metric_record,
    to_arrays,
    to_record,
)

Arrays = dict[str, NDArray[Any]]
"""Named arrays in a fixed order, usually that of a model's ``state_dict``."""

Scalar = bool | int | float | str | bytes
ConfigValue = Scalar | list[int] | list[float] | list[bool] | list[str] | list[bytes]
MetricValue = int | float | list[int] | list[float]

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
ERROR = "error"
DAMAGE = "packed.error"
FOLLOWED = "followed"
STORED_STATE = "stored-state"
NUM_EXAMPLES = "num-examples"
NUM_STEPS = "num-steps"
MULTIPLICATIONS = "multiplications"
VIRTUAL_SECONDS = "virtual-seconds"
LOSS_BEFORE = "loss-before"
LOSS_AFTER = "loss-after"
GRADIENT = "gradient"
HESSIAN = "hessian"
CURVATURE = "curvature"
CONTROL = "control"
CONTROL_CHANGE = "control-change"
DRIFT = "drift"
PLAIN_MEAN = "plain-mean"
MEAN_EXAMPLES = "mean-examples"
SELECTED = "selected"
LOSSES = "losses"
NUM_BATCHES = "num-batches"
UPDATE = "update"
STATISTICS = "statistics"
HELD = "held"
OUTPUTS = "outputs"
MEAN_OUTPUTS = "mean-outputs"
SERVER_OUTPUTS = "server-outputs"
ADVERSARIAL_GRADIENT = "adversarial-gradient"
LOGITS = "logits"
FEATURES = "features"
CLASS_TABLE = "class-table"
RANKING = "ranking"
REFERENCE = "reference"
SHARES = "shares"
CLUSTER = "cluster"
ROWS = "rows"
COUNTS = "counts"
CLASSES = "classes"
PROBABILITIES = "probabilities"
SIMILARITIES = "similarities"
SERVER_ROUND = "server-round"
LEARNING_RATE = "learning-rate"
CLIENT_IDS = "client-ids"
START_VERSIONS = "start-versions"
KEEP_VERSIONS = "keep-versions"

TRAIN = "train"
EVALUATE = "evaluate"
NEW = "new"
"""What reports call the evaluation of clients that never train."""

HELLO = "query.hello"
EVALUATION_ONLY = "evaluation-only"
"""Entry of a hello by which a site says that it never trains: 1."""

PARTNERS = "secure-partners"
"""Node-config key of the public keys with whose owners alone a site adds up."""

FEWEST_PARTNERS = "secure-fewest"
"""Node-config key of the fewest sites, this one among them, in a sum."""

NODE_KEY_VARIABLE = "FEDSUITE_NODE_KEY"
"""By which clients find the key that the SuperLink knows their node by."""

TRAINING_ROWS = "training-rows"
PROBE = "query.probe"
RANK = "query.rank"
FEATURE_WIDTH = "query.feature_width"
COUNT_EXAMPLES = "query.count_examples"
ALONE = "train.alone"
LOCAL_PHASE = "train.local_phase"
TRANSFER = "train.transfer"


def model_record(number: int) -> str:
    """Return the record's name of one of several models."""
    return f"model-{number}"


def is_model_record(name: str) -> bool:
    """Return whether a record's name is that of one of several models."""
    return re.fullmatch("model-[0-9]+", name) is not None


@dataclass(frozen=True)
class Request:
    """Request to one client.

    Parameters
    ----------
    message_type
        Flower message type, such as ``"train"`` or ``"query.probe"``.
    client_id
        The client asked.
    arrays
        Record name to named arrays; ``"arrays"`` is the shared model. Read-only.
    config
        Settings of the round.
    start_version
        Version of the stored state to start from; empty for none.
    keep_version
        Versions that checkpoints need, comma-separated; empty for none.
    new_version
        Version under which new state is stored; empty for a client used by hand, which
        stores nothing.
    """

    message_type: str
    client_id: int
    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    start_version: str = ""
    keep_version: str = ""
    new_version: str = ""

    @property
    def needed_versions(self) -> set[str]:
        """Versions of the stored state that must stay."""
        return {self.start_version, *self.keep_version.split(",")}

    @property
    def server_round(self) -> int:
        """Current round, from 1; 1 by default."""
        value = self.config.get(SERVER_ROUND, 1)
        return value if isinstance(value, int) else 1

    def number(self, name: str) -> float:
        """Return a number that the strategy must have sent along.

        Raises
        ------
        RecordError
            If the config has none of that name.
        """
        value = self.config.get(name)
        if not isinstance(value, int | float):
            raise RecordError(
                f"client {self.client_id}: the message has no number {name}: use the "
                "strategy that belongs to this client, or put it into the config"
            )
        return float(value)


@dataclass(frozen=True)
class Reply:
    """Reply of one client: named array records, metrics, and the settings it followed."""

    arrays: Mapping[str, Arrays] = field(default_factory=dict)
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    followed: Mapping[str, ConfigValue] = field(default_factory=dict)


AnyRecord = ArrayRecord | ConfigRecord | MetricRecord
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: Mapping[str, AnyRecord], kind: type[Record]) -> dict[str, Record]:
    """Return the records of one kind by name.

    Flower's own ``content.array_records`` leaves a reference cycle, which keeps the
    message's arrays in memory until the garbage collector runs.
    """
    return {name: item for name, item in content.items() if isinstance(item, kind)}


def client_record(client_id: int, name: str) -> str:
    """Return the name of one client's record."""
    return f"client-{client_id}.{name}"


def add_entry(
    content: RecordDict,
    client_id: int,
    outcome: Reply | str,
    error: str = "",
) -> None:
    """Add one client's entry to a hosted reply.

    A string is the reason of a failure, and ``error`` the class of its exception.
    """
    if isinstance(outcome, str):
        entry = ConfigRecord({"reason": outcome, "error": error})
        content[client_record(client_id, ERROR)] = entry
        return
    # Packed before anything is added, so that a failure leaves no half a reply.
    records: dict[str, AnyRecord] = {
        client_record(client_id, name): to_record(arrays)
        for name, arrays in outcome.arrays.items()
    }
    records[client_record(client_id, METRICS)] = metric_record(outcome.metrics)
    if outcome.followed:
        records[client_record(client_id, FOLLOWED)] = ConfigRecord(dict(outcome.followed))
    filled(content, records)


def failure_of(content: Mapping[str, AnyRecord], *, hosted: bool) -> tuple[str, str] | None:
    """Return reason and exception's class of a failure; None of an entry that is none.

    On a node with one client a failure is Flower's error, and a record called ``error`` is
    the app's own; what came damaged alone is named in the content.
    """
    record = records_of(content, ConfigRecord).get(ERROR if hosted else DAMAGE)
    if record is None:
        return None
    return str(record.get("reason", "no reason given")), str(record.get("error", ""))


def num_clients_in(content: RecordDict) -> int:
    """Return how many clients a message asks, or a reply answers for."""
    config = records_of(content, ConfigRecord).get(CONFIG)
    asked = None if config is None else config.get(CLIENT_IDS)
    if isinstance(asked, list):
        return len(asked)
    heads = {name.partition(".")[0] for name in content}
    return sum(head.startswith("client-") for head in heads) or 1


def pack_reply(reply: Reply) -> RecordDict:
    """Pack the reply of a node's only client."""
    content = RecordDict({name: to_record(a) for name, a in reply.arrays.items()})
    content[METRICS] = metric_record(reply.metrics)
    if reply.followed:
        content[FOLLOWED] = ConfigRecord(dict(reply.followed))
    return content


def split_replies(
    content: RecordDict, client_ids: Iterable[int]
) -> dict[int, dict[str, AnyRecord]]:
    """Return the records of a hosted reply by known client."""
    # One pass, however many records a node sends.
    entries: dict[int, dict[str, AnyRecord]] = {k: {} for k in client_ids}
    owners = {f"client-{client_id}": entry for client_id, entry in entries.items()}
    for name, record in content.items():
        head, dot, tail = name.partition(".")
        if dot and head in owners:
            owners[head][tail] = record
    return {client_id: entry for client_id, entry in entries.items() if entry}


def unpack_requests(
    content: RecordDict, message_type: str, group_id: str, only_client: int
) -> tuple[list[Request], bool]:
    """Return one request per client, and whether the layout is hosted.

    Parameters
    ----------
    content
        Content of the message.
    message_type
        Its type.
    group_id
        Round and exchange of the message.
    only_client
        Id of the node's client in the single layout, whose messages name no client.
    """
    # items(), because dict() reads Flower's records slowly.
    config = dict(_only(records_of(content, ConfigRecord), CONFIG).items())
    hosted = CLIENT_IDS in config
    client_ids = _int_list(config.pop(CLIENT_IDS)) if hosted else [only_client]
    count = len(client_ids)
    start = _str_list(config.pop(START_VERSIONS, [""] * count), count)
    keep = _str_list(config.pop(KEEP_VERSIONS, [""] * count), count)
    shared: dict[str, Arrays] = {}
    own: dict[str, dict[str, Arrays]] = {}
    for name, record in records_of(content, ArrayRecord).items():
        head, _, tail = name.partition(".")
        if hosted and tail and head.startswith("client-"):
            own.setdefault(head, {})[tail] = to_arrays(record)
        else:
            shared[name] = to_arrays(record)
    return [
        Request(
            message_type=message_type,
            client_id=client_id,
            arrays={**shared, **own.get(f"client-{client_id}", {})},
            config=config,
            start_version=start[index],
            keep_version=keep[index],
            new_version=group_id,
        )
        for index, client_id in enumerate(client_ids)
    ], hosted


def joined(groups: Mapping[Any, Arrays]) -> Arrays:
    """Return arrays of groups as ``group/name`` to array, for a state."""
    return {f"{k}/{name}": a for k, named in groups.items() for name, a in named.items()}


def grouped(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Arrays]:
    """Return group to arrays by name: the inverse of :func:`joined`."""
    groups: dict[str, Arrays] = {}
    for path, array in arrays.items():
        group, _, name = path.partition("/")
        groups.setdefault(group, {})[name] = array
    return groups


def _only(records: Mapping[str, ConfigRecord], name: str) -> Mapping[str, ConfigValue]:
    """Return the record of a name, or else the only record, or else an empty one."""
    if name in records:
        return records[name]
    return next(iter(records.values())) if len(records) == 1 else {}


def _int_list(value: ConfigValue) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise RecordError(f"{CLIENT_IDS} is not a list of client numbers")
    return [item for item in value if isinstance(item, int)]


def _str_list(value: ConfigValue, count: int) -> Sequence[str]:
    if not isinstance(value, list) or len(value) != count:
        raise RecordError(f"the message names {count} clients, but not as many versions")
    return [str(item) for item in value]
