"""What a node that means harm sends, a different thing each round.

It runs inside a node's ClientApp: a test copies it into the app's package.
"""

from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

HOSTILE_PARTITION = 1
NASTY = "../../etc/passwd\x1b[31m\r\n{0.__class__}%s`id`"

Tampering = Callable[[RecordDict, str], None]


def _arrays(content: RecordDict, prefix: str) -> ArrayRecord:
    """Return the first of a client's records of arrays."""
    return next(r for n, r in content.array_records.items() if n.startswith(prefix))


def _set(content: RecordDict, prefix: str, value: Array) -> None:
    arrays = _arrays(content, prefix)
    arrays[next(iter(arrays))] = value


def _first(content: RecordDict, prefix: str) -> np.ndarray:
    value: np.ndarray = next(iter(_arrays(content, prefix).values())).numpy()
    return value


def not_finite(content: RecordDict, prefix: str) -> None:
    _set(content, prefix, Array(np.full_like(_first(content, prefix), np.nan)))


def broadcasts(content: RecordDict, prefix: str) -> None:
    _set(content, prefix, Array(_first(content, prefix)[:1]))


def transposed(content: RecordDict, prefix: str) -> None:
    first = np.atleast_2d(_first(content, prefix))
    _set(content, prefix, Array(np.ascontiguousarray(first.T)))


def whole_numbers(content: RecordDict, prefix: str) -> None:
    _set(content, prefix, Array(_first(content, prefix).astype(np.int64)))


def one_more(content: RecordDict, prefix: str) -> None:
    _arrays(content, prefix)[NASTY] = Array(np.zeros(1, np.float32))


def oversize(content: RecordDict, prefix: str) -> None:
    _set(content, prefix, Array(np.zeros((4096, 4096), np.float32)))


def pickled(content: RecordDict, prefix: str) -> None:
    old = next(iter(_arrays(content, prefix).values()))
    value = Array(old.dtype, old.shape, "pickle", b"cos\nsystem\n(S'id'\ntR.")
    _set(content, prefix, value)


def claims_much(content: RecordDict, prefix: str) -> None:
    old = next(iter(_arrays(content, prefix).values()))
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    _set(content, prefix, Array(old.dtype, old.shape, old.stype, header))


def uncounted(content: RecordDict, prefix: str) -> None:
    del content[f"{prefix}metrics"]["num-examples"]


def negative(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}metrics"]["num-examples"] = -5


def countless(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}metrics"]["num-examples"] = float("nan")


def another_record(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}{NASTY}"] = ArrayRecord({"x": Array(np.zeros(1, np.float32))})


def failure(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}error"] = ConfigRecord({"reason": NASTY * 1000})


def nothing(content: RecordDict, prefix: str) -> None:
    for name in list(content):
        del content[name]


def raises(content: RecordDict, prefix: str) -> None:
    raise RuntimeError(NASTY)


TAMPERINGS: tuple[tuple[Tampering, str], ...] = (
    (not_finite, "holds NaN or infinity"),
    (broadcasts, "shape"),
    (transposed, "shape"),
    (whole_numbers, "dtype int64"),
    (one_more, "array names differ"),
    (oversize, "shape"),
    (pickled, "unknown array serialisation 'pickle'"),
    (claims_much, "not"),
    (uncounted, "num-examples"),
    (negative, "num-examples"),
    (countless, "num-examples"),
    (another_record, "unexpected array record"),
    (failure, "client failed: ../../etc"),
    (nothing, ""),
    (raises, "node failed"),
)
"""What is sent in rounds 1, 2, ..., and words of the reason why it is not used."""


Call = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Call], Message]


def tampering(changes: Sequence[Tampering]) -> Mod:
    """Return a mod of Flower's: the hostile node's replies of rounds 1, 2, ... change."""

    def tamper(message: Message, context: Context, call_next: Call) -> Message:
        reply = call_next(message, context)
        hostile = context.node_config["partition-id"] == HOSTILE_PARTITION
        if not hostile or not message.metadata.message_type.startswith("train"):
            return reply
        server_round = int(message.content["config"]["server-round"])
        if server_round <= len(changes):
            changes[server_round - 1](reply.content, f"client-{HOSTILE_PARTITION}.")
        return reply

    return tamper


tamper = tampering([change for change, _ in TAMPERINGS])
