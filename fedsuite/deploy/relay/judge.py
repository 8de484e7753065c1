"""What of a reply may leave a site: a new content, built from what was understood.

No byte of the app's passes. Arrays are read without pickle and written anew, numbers are
rounded, texts are those of the question or named by the policy. Records and arrays come in
the question's order.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.deploy.relay.outgoing import Bounded, Place, bounded
from fedsuite.deploy.relay.policy import Policy, matches
from fedsuite.messages.decomposition import SLOW_VERSION
from fedsuite.messages.records import (
    CLIENT_IDS,
    CONFIG,
    ERROR,
    EVALUATE,
    HELLO,
    NUM_EXAMPLES,
    STORED_STATE,
    TRAIN,
    records_of,
)
from fedsuite.messages.secrets_shared import SIGNATURE_BYTES, signed
from fedsuite.messages.secure_sums import (
    KEYS,
    RECORD,
    STAGES,
    Spec,
    Terms,
    as_rows,
    reply_spec,
    words_to_sign,
)
from fedsuite.workarounds.packed import LAYOUT, pack, unpack

FAILED = "the client failed: the site's own log says why"
"""What the server hears of an error, whose text the app has chosen."""

UNDER_MASKS = "secure-sum"
"""Rule of what leaves for a sum under masks."""

_MOST_EXTRA = 8
"""Words of a sum beside the question's numbers, such as weights."""

_CLIENT = re.compile(r"client-([0-9]{1,18})\.")
_MEGABYTE = 1e6


class Denied(Exception):
    """A rule forbids a reply.

    Parameters
    ----------
    rule
        Key of the policy, such as ``leave.records``.
    why
        What broke it, for the site's ledger alone; it may hold an app's own words.
    """

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(f"{rule}: {why}")
        self.rule = rule
        self.why = why


@dataclass(frozen=True)
class Used:
    """What has left before: bytes today, and replies in the run."""

    day_bytes: int = 0
    run_replies: int = 0


@dataclass(frozen=True)
class Judged:
    """A reply that may leave.

    Parameters
    ----------
    content
        What leaves.
    records
        What a ledger says of it: names, shapes, dtypes and bytes of arrays, and the other
        entries.
    norm, norm_left
        Lengths of the change; see :class:`~fedsuite.deploy.relay.outgoing.Bounded`.
    withheld
        Names of numbers that stay here because their rows are too few.
    masked
        Whether it is a stage of a sum under masks.
    """

    content: RecordDict
    records: Mapping[str, Any]
    num_bytes: int
    norm: float
    norm_left: float
    withheld: tuple[str, ...] = ()
    masked: bool = False


@dataclass(frozen=True)
class Question:
    """What was asked, as the rules see it.

    Parameters
    ----------
    content
        Its records, not packed.
    clients
        Prefixes of the records of clients that it asks, such as ``client-3.``.
    words
        Arrays that a client's record holds for a sum under masks; None of a question that
        asks for no such.
    """

    content: RecordDict
    clients: frozenset[str] = field(default=frozenset())
    words: Spec | None = None

    @classmethod
    def of(cls, content: RecordDict, message_type: str) -> "Question":
        """Return the question of a message's content, packed or not."""
        plain = unpack(content)
        ids: set[str] = set()
        for config in records_of(plain, ConfigRecord).values():
            listed = config.get(CLIENT_IDS)
            if isinstance(listed, list):
                ids |= {f"client-{k}." for k in listed if isinstance(k, int)}
        return cls(plain, frozenset(ids), _words(plain, message_type))

    def bare(self, name: str) -> str:
        """Return a record's name without the client that was asked."""
        head = _CLIENT.match(name)
        return name[head.end() :] if head and head[0] in self.clients else name

    def said(self, name: str, value: object) -> bool:
        """Return whether the question has such an entry in one of its settings."""
        configs = records_of(self.content, ConfigRecord).values()
        return any(
            name in config and type(config[name]) is type(value) and config[name] == value
            for config in configs
        )

    def array(self, record: str, name: str) -> Array | None:
        """Return the array that a reply's array changes, of the same record if there is."""
        records = records_of(self.content, ArrayRecord)
        named = [records[record]] if record in records else []
        own = [r for n, r in records.items() if self.bare(n) == self.bare(record)]
        for held in (*named, *own, *records.values()):
            if name in held:
                return held[name]
        return None


def _words(content: RecordDict, message_type: str) -> Spec | None:
    """Return what a question asks for of a sum under masks: no more than it can need."""
    config = dict(records_of(content, ConfigRecord).get(CONFIG, {}))
    if message_type not in STAGES:
        return None
    try:
        terms = Terms.read(config)
    except RunError:
        return None
    if message_type == TRAIN:
        records = records_of(content, ArrayRecord).items()
        sent = [record for name, record in records if not name.endswith(RECORD)]
        size = sum(array.numpy().size for record in sent for array in record.values())
        if terms.num_words > size + _MOST_EXTRA:
            return None
    return reply_spec(message_type, terms) if terms.masked else None


def judged(
    reply: RecordDict,
    question: RecordDict,
    message_type: str,
    policy: Policy,
    used: Used,
    random: np.random.Generator,
    demand: Literal["", "masked"] = "",
    key_file: Path | None = None,
) -> Judged:
    """Return what of a reply may leave.

    Parameters
    ----------
    reply
        The app's content. Nothing in it is trusted.
    question
        Content of the message that it answers.
    message_type
        Type of that message.
    policy
        The site's rules.
    used
        What has left before.
    random
        Source of the policy's noise.
    demand
        ``masked`` where the node trains under masks alone: then nothing else leaves but
        greetings and scores.
    key_file
        The node's key, by which its keys for a sum are signed; None signs nothing.

    Raises
    ------
    Denied
        Naming the rule that forbids it.
    """
    leave = policy.leave
    if not matches(message_type, leave.message_types):
        raise Denied("leave.message-types", message_type)
    if leave.run_replies and used.run_replies >= leave.run_replies:
        raise Denied("leave.run-replies", f"{used.run_replies} have left in this run")
    asked = Question.of(question, message_type)
    if demand and asked.words is None and message_type not in (HELLO, EVALUATE):
        raise Denied(UNDER_MASKS, f"{message_type} asks for more than a sum under masks")
    if asked.words is not None and (name := _moves_arrays(policy)):
        raise Denied(f"change.{name}", "words under masks cannot be changed")
    is_packed = any(name.endswith(LAYOUT) for name in reply)
    try:
        plain = unpack(reply)
    except Exception as error:
        raise Denied("form", f"packed records do not fit: {type(error).__name__}") from None
    arrays: dict[Place, NDArray[Any]] = {}
    counterparts: dict[Place, NDArray[Any]] = {}
    others: dict[str, MetricRecord | ConfigRecord] = {}
    withheld: list[str] = []
    for name, record in plain.items():
        bare = asked.bare(name)
        if isinstance(record, ArrayRecord) and asked.words is not None:
            words = _masked(name, bare, record, asked.words)
            if message_type == KEYS and key_file is not None:
                words[name, "signature"] = _signed(name, words, asked, key_file)
            arrays |= words
        elif not _is_asked(bare, asked) and not matches(bare, leave.records):
            raise Denied("leave.records", name)
        elif isinstance(record, ArrayRecord):
            if demand:
                raise Denied(UNDER_MASKS, f"{name}: no array but those of a sum")
            for key, array in record.items():
                source = asked.array(name, key)
                old = None if source is None else source.numpy()
                arrays[name, key] = _values(key, array, old, policy)
                if old is not None:
                    counterparts[name, key] = old
        elif isinstance(record, MetricRecord) and asked.words is not None:
            others[name] = _told_under_masks(record, asked)
        elif isinstance(record, MetricRecord):
            others[name], kept = _numbers(record, policy)
            withheld += kept
        else:
            others[name] = _texts(bare, record, asked, policy)
    size = sum(values.nbytes for values in arrays.values())
    if size > leave.reply_megabytes * _MEGABYTE:
        raise Denied("leave.reply-megabytes", f"{size / _MEGABYTE:.3f} MB")
    if leave.day_megabytes and used.day_bytes + size > leave.day_megabytes * _MEGABYTE:
        raise Denied("leave.day-megabytes", f"{used.day_bytes / _MEGABYTE:.3f} MB today")
    if policy.change.noise_multiplier and (extra := arrays.keys() - counterparts.keys()):
        raise Denied("change.noise-multiplier", f"no noise fits {sorted(extra)[0]}")
    outgoing = bounded(arrays, counterparts, policy.change, random)
    clean = _built(plain, asked, outgoing, others)
    return Judged(
        pack(clean) if is_packed else clean,
        _described(clean, outgoing),
        size,
        outgoing.norm,
        outgoing.norm_left,
        tuple(withheld),
        asked.words is not None,
    )


def _moves_arrays(policy: Policy) -> str:
    """Return the first key by which a policy changes arrays; empty of none."""
    change, unchanged = policy.change.values(), policy.change.unchanged()
    return next((name for name in change if change[name] != unchanged[name]), "")


def _masked(
    name: str, bare: str, record: ArrayRecord, words: Spec
) -> dict[Place, NDArray[Any]]:
    """Return the words, keys or shares of a client, which are just what was asked."""
    if bare != RECORD or set(record) != set(words):
        raise Denied(UNDER_MASKS, f"{name}: arrays {', '.join(sorted(record))}")
    values: dict[Place, NDArray[Any]] = {}
    for key, (shape, dtype) in words.items():
        array = _read(key, record[key])
        if (array.shape, array.dtype.name) != (shape, dtype):
            raise Denied(UNDER_MASKS, f"{name}: {key} is {array.dtype.name} {array.shape}")
        values[name, key] = array
    return values


def _signed(
    name: str, words: Mapping[Place, NDArray[Any]], asked: Question, key_file: Path
) -> NDArray[Any]:
    """Return the site's signature of the keys that leave; no app can make it."""
    terms = Terms.read(dict(records_of(asked.content, ConfigRecord)[CONFIG]))
    client = _CLIENT.match(name)
    keys = [bytes(row) for row in words[name, "keys"]]
    to_sign = words_to_sign(terms, int(client[1]) if client else 0, keys)
    try:
        return as_rows([signed(key_file, to_sign)], SIGNATURE_BYTES)
    except (OSError, ValueError) as error:
        raise Denied(UNDER_MASKS, f"the node's key cannot sign: {error}") from None


def _told_under_masks(record: MetricRecord, asked: Question) -> MetricRecord:
    """Return the numbers beside a sum's words, which say nothing of the site's rows."""
    for name, value in record.items():
        is_one = name in (NUM_EXAMPLES, STORED_STATE) and value == 1
        if not is_one and not (name == SLOW_VERSION and asked.said(name, value)):
            raise Denied(UNDER_MASKS, f"{name} = {value}")
    return MetricRecord({name: record[name] for name in sorted(record)})


def _is_asked(bare: str, asked: Question) -> bool:
    return any(bare == asked.bare(name) for name in asked.content)


def _values(
    name: str, array: Array, old: NDArray[Any] | None, policy: Policy
) -> NDArray[Any]:
    """Return the values of an array that a policy lets out."""
    values = _read(name, array)
    if not matches(values.dtype.name, policy.leave.dtypes):
        raise Denied("leave.dtypes", f"array {name} is {values.dtype.name}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise Denied("form", f"array {name} is not finite")
    if old is None:
        if not matches(name, policy.leave.arrays):
            raise Denied("leave.arrays", name)
    elif (values.shape, values.dtype.name) != (old.shape, old.dtype.name):
        raise Denied(
            "leave.arrays",
            f"{name} came as {old.dtype.name} {old.shape} and is "
            f"{values.dtype.name} {values.shape}",
        )
    return values


def _read(name: str, array: Array) -> NDArray[Any]:
    """Return an array's values, read from its bytes; what it declares counts nothing."""
    if array.stype != "numpy.ndarray":
        raise Denied("form", f"array {name} is no numpy.ndarray")
    try:
        values = array.numpy()
    except Exception as error:
        raise Denied("form", f"array {name}: {type(error).__name__}") from None
    # The machine's byte order: which one an app takes says something too.
    return np.array(values, dtype=values.dtype.newbyteorder("="), order="C")


def _numbers(record: MetricRecord, policy: Policy) -> tuple[MetricRecord, list[str]]:
    """Return the numbers that may leave, and the names of those withheld."""
    leave = policy.leave
    rows = record.get(NUM_EXAMPLES, 0)
    most = leave.most_rows or leave.most_value
    if not isinstance(rows, int | float) or not 0 <= rows <= most:
        raise Denied("leave.most-rows", f"{NUM_EXAMPLES} = {rows}")
    clean: dict[str, Any] = {}
    withheld: list[str] = []
    for name in sorted(record):
        value = record[name]
        if not matches(name, leave.metrics):
            raise Denied("leave.metrics", name)
        if isinstance(value, list) and len(value) > leave.longest_list:
            raise Denied("leave.longest-list", f"{name} has {len(value)} numbers")
        if name == NUM_EXAMPLES:
            clean[name] = _rounded(rows, policy)
        elif rows < leave.least_rows:
            withheld.append(name)
        elif isinstance(value, list):
            clean[name] = [_rounded(number, policy) for number in value]
        else:
            clean[name] = _rounded(value, policy)
    return MetricRecord(clean), withheld


def _rounded(value: float, policy: Policy) -> float:
    """Return a number as it may leave; whole numbers stay whole."""
    if math.isnan(value):
        # One NaN of many bit patterns.
        return math.nan
    if math.isfinite(value) and abs(value) > policy.leave.most_value:
        raise Denied("leave.most-value", f"{value:g}")
    if isinstance(value, int) or not policy.leave.digits or math.isinf(value):
        return value
    return float(f"{value:.{policy.leave.digits}g}")


def _texts(
    bare: str, record: ConfigRecord, asked: Question, policy: Policy
) -> ConfigRecord:
    """Return the settings that may leave: those of the question, and those named."""
    if bare == ERROR:
        return ConfigRecord({"reason": FAILED})
    clean: dict[str, Any] = {}
    for name in sorted(record):
        value = record[name]
        if not asked.said(name, value):
            where = f"{bare}.{name}"
            if not matches(where, policy.leave.strings):
                raise Denied("leave.strings", where)
            entries = value if isinstance(value, list) else [value]
            if isinstance(value, list) and len(value) > policy.leave.longest_list:
                raise Denied("leave.longest-list", where)
            if any(
                isinstance(entry, str | bytes) and len(entry) > policy.leave.longest_string
                for entry in entries
            ):
                raise Denied("leave.longest-string", where)
        clean[name] = value
    return ConfigRecord(clean)


def _built(
    plain: RecordDict,
    asked: Question,
    outgoing: Bounded,
    others: Mapping[str, MetricRecord | ConfigRecord],
) -> RecordDict:
    """Return the new content, in the question's order, others by name."""
    places = [asked.bare(name) for name in asked.content]
    clean = RecordDict()
    for name in _ordered(plain, places, asked.bare):
        if name in others:
            clean[name] = others[name]
            continue
        keys = [key for record, key in outgoing.arrays if record == name]
        source = _source(name, asked)
        clean[name] = ArrayRecord(
            {
                key: Array(np.array(outgoing.arrays[name, key], order="C"))
                for key in _ordered(keys, list(source), str)
            }
        )
    return clean


def _source(name: str, asked: Question) -> Mapping[str, Array]:
    """Return the question's arrays in the order that a record's come in."""
    records = records_of(asked.content, ArrayRecord)
    alike = [r for n, r in records.items() if asked.bare(n) == asked.bare(name)]
    return dict(pair for record in (*alike, *records.values()) for pair in record.items())


def _ordered(names: Iterable[str], order: list[str], place: Any) -> list[str]:
    rank = {name: number for number, name in reversed(list(enumerate(order)))}
    return sorted(names, key=lambda name: (rank.get(place(name), len(order)), name))


def _described(clean: RecordDict, outgoing: Bounded) -> dict[str, Any]:
    """Return what a ledger says of what leaves."""
    records: dict[str, Any] = {name: {} for name in clean}
    for (name, key), values in outgoing.arrays.items():
        records[name][key] = [values.dtype.name, list(values.shape), values.nbytes]
    for name, record in clean.items():
        if not isinstance(record, ArrayRecord):
            records[name] = {key: _plain(value) for key, value in record.items()}
    return records


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
