"""Secure sums on the wire: what all agree on, and the words that stand for numbers.

A client turns its change of the model, times its share of the most examples that one may
have, into whole numbers from 0 to :attr:`Terms.steps`, the *words*. Words add up modulo a
power of 2, and so do masks. In front of the words stands the *head*: 1, the number of
examples, whether the change was scaled, the weight, a number that a method adds up beside
it, and two check words, which come out right in a sum only if all that was added up is what
its clients made.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedsuite.core.errors import NotFiniteError, RunError
from fedsuite.messages import secrets_shared as secrets
from fedsuite.messages.records import (
    ARRAYS,
    HELD,
    LEARNING_RATE,
    NUM_EXAMPLES,
    NUM_STEPS,
    TRAIN,
    Arrays,
    ConfigValue,
    MetricValue,
)

KEYS = "query.secure_keys"
SHARES = "query.secure_shares"
UNMASK = "query.secure_unmask"
STAGES = (KEYS, SHARES, TRAIN, UNMASK)
"""Message types of a round in their order; without masks the third is the only one."""

RECORD = "secure-sum"
"""Record of all that travels for a sum, in both directions."""

CLIENTS = "secure-clients"
ACTIVE = "secure-active"
GONE = "secure-gone"

FEWEST = 3
"""Clients below which a sum tells one of them what another sent."""

MOST_PAIRED = 30
"""Clients up to which each masks with every other; of more, with some neighbours."""

PER_DOUBLING = 6
"""Neighbours of a client for each time that the number of clients doubles."""

HEAD_SIZE = 7
_SUMMED = 5
"""Words of the head but for the check words."""

STATISTICS_RANGE = 1024.0
"""Largest change of a measured number, such as a running variance."""

COUNTERS_RANGE = 65536.0
"""Largest change of a number that is not of floating point, such as a counter."""

RECORDS_RANGE = 64.0
"""Largest number of a further record, such as a gradient's change, in clipping ranges."""

MOST_STEPS = float(1 << 20)
MOST_SENT = float(1 << 16)
"""Largest weight that q-FedAvg gives the model that was sent, in weights of a client."""

STEEPEST = 20.0
"""Largest exponent of a weight against another: words have no place for more."""

_SCALAR_BITS = 52
_FLOOR = 1e-10
"""Added to losses, as in q-FedAvg: a power of 0 has no value."""

_NAME = "secure-"

Words = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Terms:
    """What all clients of a round must agree on; a client refuses others.

    Parameters
    ----------
    session
        Number of the session, which only rises.
    threshold
        Fewest holders of a client's shares that can unmask its part of a sum.
    clipping_range
        Largest change of a trained number.
    most_examples
        Most examples of one client.
    num_clients
        Clients that are asked.
    num_words
        Numbers of the model that come back.
    bits
        Bits of a word: 16 or 32.
    masked
        Whether words leave under masks.
    statistics
        Names of floating-point arrays that are measured rather than trained.
    weight, form, rate, loss
        What a client counts with; see :class:`~fedsuite.rounds.declaration.Summed`.
    most_loss
        Largest loss that counts.
    records
        Records that add up beside the model.
    exact
        Whether a client drops out rather than scale its change down.
    neighbours
        With how many others a client masks and shares; 0 is with all.
    ring
        Number by which neighbours are drawn.
    """

    session: int
    threshold: int
    clipping_range: float
    most_examples: int
    num_clients: int
    num_words: int
    bits: int = 32
    masked: bool = True
    statistics: tuple[str, ...] = ()
    weight: str = "examples"
    form: str = "plain"
    rate: float = 0.0
    loss: str = ""
    most_loss: float = 1.0
    records: tuple[str, ...] = ()
    exact: bool = False
    neighbours: int = 0
    ring: int = 0

    @property
    def holders(self) -> int:
        """Most clients that hold a client's shares, itself among them."""
        return self.neighbours + 1 if self.neighbours else self.num_clients

    @property
    def scalar_steps(self) -> int:
        """The largest word of a number in the head."""
        return (1 << _SCALAR_BITS) // self.num_clients

    @property
    def steps(self) -> int:
        """The largest word of a client, so that the sum of all fits."""
        return ((1 << self.bits) - 1) // self.num_clients

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the words."""
        return np.dtype(f"uint{self.bits}")

    def config(self) -> dict[str, ConfigValue]:
        """Return the entries of a message's config."""
        values: dict[str, ConfigValue] = {
            _NAME + f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)
        }
        for name in ("statistics", "records"):
            values[_NAME + name] = "\n".join(getattr(self, name))
        return values

    @classmethod
    def read(cls, config: Mapping[str, ConfigValue]) -> Self:
        """Return the terms in a message's config.

        Raises
        ------
        RunError
            If one is missing or of another type, or :func:`refusal` has a reason.
        """
        example = cls(1, 2, 1.0, 1, FEWEST, 1).config()
        for name, value in example.items():
            if type(config.get(name)) is not type(value):
                raise RunError(
                    f"the message has no {type(value).__name__} {name}: give the strategy "
                    "secure_aggregation"
                )
        given: dict[str, Any] = {
            name.removeprefix(_NAME).replace("-", "_"): config[name] for name in example
        }
        for name in ("statistics", "records"):
            given[name] = tuple(filter(None, given[name].split("\n")))
        terms = cls(**given)
        if reason := refusal(terms):
            raise RunError(f"refused: {reason}")
        return terms


def least_threshold(holders: int) -> int:
    """Return the lowest threshold: two groups that reach it share two clients or more.

    A server that tells the clients different stories could else unmask two sums, or one
    client's own words, with one liar's help.
    """
    return (holders + 1) // 2 + 1


def usual_threshold(holders: int) -> int:
    """Return the threshold where nobody chooses one: above two thirds of the holders."""
    return 2 * holders // 3 + 1


def usual_neighbours(num_clients: int) -> int:
    """Return with how many others a client masks; 0 is with all.

    J. Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS
    2020: of the order of log n. With :func:`usual_threshold`, of 32 to 1,000 clients, the
    tails of the hypergeometric distribution give: where one tenth is lost, chosen by
    chance, a round is void with a probability below 1e-4; where a quarter helps the server,
    it can open some other client's words with one below 2^-31.
    """
    if num_clients <= MOST_PAIRED:
        return 0
    neighbours = PER_DOUBLING * math.ceil(math.log2(num_clients))
    return neighbours if neighbours < num_clients - 1 else 0


def ring_of(client_ids: Sequence[int], terms: Terms) -> list[int]:
    """Return clients in an order that everybody can draw from the terms."""

    def draw(client_id: int) -> bytes:
        return hashlib.sha256(f"neighbours {terms.ring} {client_id}".encode()).digest()

    return sorted(client_ids, key=draw)


def neighbourhood(ring: Sequence[int], client_id: int, terms: Terms) -> list[int]:
    """Return with whom a client of a ring masks and shares, itself among them, sorted."""
    if not terms.neighbours or len(ring) <= terms.holders:
        return sorted(ring)
    place, half = ring.index(client_id), terms.neighbours // 2
    return sorted(ring[(place + k) % len(ring)] for k in range(-half, half + 1))


def refusal(terms: Terms) -> str:
    """Return why nobody should add up on such terms; empty if one may."""
    if terms.num_clients < FEWEST:
        return f"a sum of {terms.num_clients} clients shows what single ones sent"
    if terms.neighbours not in (0, usual_neighbours(terms.num_clients)):
        return (
            f"{terms.neighbours} neighbours of {terms.num_clients} clients: expected "
            f"{usual_neighbours(terms.num_clients)}"
        )
    if not least_threshold(terms.holders) <= terms.threshold <= terms.holders:
        return threshold_refusal(terms.threshold, terms.holders)
    if terms.bits not in (16, 32):
        return f"words of {terms.bits} bits: expected 16 or 32"
    if not 0 < terms.clipping_range < math.inf:
        return f"a clipping range of {terms.clipping_range:g}"
    if not 1 <= terms.most_examples <= (2**32 - 1) // terms.num_clients:
        return f"most examples of {terms.most_examples}, whose sum does not fit 32 bits"
    if terms.weight not in ("examples", "clients") or terms.form not in FORMS:
        return f"a weight of {terms.weight}, {terms.form}: no such is known"
    if not 0 < terms.most_loss < math.inf or not math.isfinite(terms.rate):
        return f"a rate of {terms.rate:g}, and a loss of {terms.most_loss:g} at most"
    if terms.form == "tilted" and abs(terms.rate) * terms.most_loss > STEEPEST:
        return steep_refusal(terms.rate, terms.most_loss)
    if terms.form == "raised" and terms.rate < 0:
        return f"a power of {terms.rate:g}"
    return ""


FORMS = ("plain", "per-step", "tilted", "raised")


def steep_refusal(rate: float, most_loss: float) -> str:
    """Return what is wrong with weights that are too far apart for words."""
    return (
        f"weights of exp({abs(rate):g} x loss) up to a loss of {most_loss:g} differ by "
        f"more than exp({STEEPEST:g}), for which words have no place"
    )


def threshold_refusal(threshold: int, num_clients: int) -> str:
    """Return what is wrong with a threshold."""
    return (
        f"a threshold of {threshold} of {num_clients} clients: expected "
        f"{least_threshold(num_clients)} to {num_clients}"
    )


Spec = dict[str, tuple[tuple[int, ...], str]]
"""Array name to shape and dtype."""


def reply_spec(message_type: str, terms: Terms) -> Spec:
    """Return the arrays that a client sends at a stage, with their shapes and dtypes.

    Rows are those of the client's neighbourhood, by number: its own row, and rows of whom
    nothing is said, are zeros.

    Parameters
    ----------
    message_type
        One of :data:`STAGES`.
    terms
        The terms of the round.
    """
    holders = terms.holders
    words: Spec = {
        "head": ((HEAD_SIZE,), "uint64"),
        "body": ((terms.num_words,), str(terms.dtype)),
    }
    bytes_of: dict[str, dict[str, tuple[int, ...]]] = {
        KEYS: {
            "keys": (2, secrets.PUBLIC_KEY_BYTES),
            "signature": (1, secrets.SIGNATURE_BYTES),
        },
        SHARES: {
            "tokens": (holders, secrets.TOKEN_BYTES),
            "digests": (2 * holders, 32),
            "seed": (1, 32),
        },
        TRAIN: {"complaints": (holders,)} if terms.masked else {},
        UNMASK: {"shares": (holders, secrets.KEY_SHARE_BYTES)},
    }
    spec: Spec = {name: (shape, "uint8") for name, shape in bytes_of[message_type].items()}
    return {**words, **spec} if message_type == TRAIN else spec


def words_to_sign(terms: Terms, client_id: int, keys: Sequence[bytes]) -> bytes:
    """Return what a node signs: that these keys are this client's, on these terms.

    The session is one of the terms, so that nobody can use the signature again.
    """
    return repr(("fedsuite secure sum", terms, client_id, list(keys))).encode()


# -------------------------------------------------------------------------------- the words


def ranges(arrays: Mapping[str, NDArray[Any]], terms: Terms) -> dict[str, float]:
    """Return the largest change of a number, by array."""
    further = tuple(f"{record}/" for record in terms.records)
    return {
        name: RECORDS_RANGE * terms.clipping_range
        if further and name.startswith(further)
        else COUNTERS_RANGE
        if array.dtype.kind != "f"
        else STATISTICS_RANGE
        if name in terms.statistics
        else terms.clipping_range
        for name, array in arrays.items()
    }


def quantised(
    values: NDArray[np.float64], steps: int, stream: np.random.Generator
) -> NDArray[np.int64]:
    """Return numbers from -1 to 1 as whole numbers from 0 to ``steps``.

    A number between two steps is rounded up with the probability of its distance to the
    lower one. So it is right in the mean, and off by less than 2 / ``steps``.
    """
    positions = (values + 1.0) * (steps / 2)
    words = np.floor(positions + stream.random(values.shape)).astype(np.int64)
    return np.clip(words, 0, steps)


def dequantised(total: NDArray[Any], count: int, steps: int) -> NDArray[np.float64]:
    """Return the sum of ``count`` clients' numbers, from -``count`` to ``count``."""
    return np.asarray(total, np.float64) * (2.0 / steps) - count


def sum_errors(
    sent: Mapping[str, NDArray[Any]], new: Arrays, total: "Part", terms: Terms
) -> dict[str, float]:
    """Return how far off a trained number of the mean may be, by array.

    It bounds the distance from the mean of what the clients trained, by their weights and
    in exact numbers: the rounding to words, that of the head, and that of the mean to the
    array's dtype. Changes that a client scaled down are those that it sent. What a later
    step makes of the difference is not in it.

    Parameters
    ----------
    sent, new
        What :func:`decoded` took and returned.
    total
        The sum of the words.
    terms
        The terms of the round.
    """
    count, divisor = int(total.head[0]), _divisors(total, terms)[0]
    # A weight that is in the words too is exact; what the head alone has is rounded.
    in_head = {
        "per-step": 0.5 * count / max(int(total.head[4]), 1),
        "raised": 0.5 * count * MOST_SENT / terms.scalar_steps / divisor,
    }
    loose = in_head.get(terms.form, 0.0)
    errors: dict[str, float] = {}
    for name, limit in ranges(sent, terms).items():
        array = new[name]
        if array.dtype.kind != "f" or name in terms.statistics or not array.size:
            continue
        of_words = 2.0 * limit * count / terms.steps
        moved = float(np.abs(np.subtract(array, sent[name], dtype=np.float64)).max())
        of_dtype = float(np.spacing(np.abs(array).max())) / 2
        # The last factor is for float64, in which all this is done.
        error = of_words / divisor + moved * loose + of_dtype
        errors[name] = error * (1 + 2.0**-20)
    return errors


@dataclass(frozen=True)
class Part:
    """Head and body of one client's words, of a mask, or of a sum of either."""

    head: Words
    body: Words

    @classmethod
    def zero(cls, terms: Terms) -> Self:
        """Return nothing, to add to."""
        return cls(np.zeros(HEAD_SIZE, np.uint64), np.zeros(terms.num_words, terms.dtype))

    def plus(self, other: "Part") -> "Part":
        """Return the sum, modulo the words' range."""
        return Part(self.head + other.head, self.body + other.body)

    def minus(self, other: "Part") -> "Part":
        """Return the difference, modulo the words' range."""
        return Part(self.head - other.head, self.body - other.body)

    def arrays(self) -> Arrays:
        """Return the arrays of a record."""
        return {"head": self.head, "body": self.body}


def further_name(record: str, name: str) -> str:
    """Return the name of an array that stands for itself, and not for a change.

    Of a model's own record these are what clients hold already, and do not get.
    """
    return f"{HELD if record == ARRAYS else record}/{name}"


def words_of(
    sent: Mapping[str, NDArray[Any]],
    trained: Mapping[str, NDArray[Any]],
    metrics: Mapping[str, MetricValue],
    terms: Terms,
    stream: np.random.Generator,
) -> Part:
    """Return a client's words.

    Parameters
    ----------
    sent, trained
        The model as received, and what came of it; the same names and shapes. Of further
        records, whose names begin with theirs and ``/``, what they are changes of: zeros.
    metrics
        The client's own numbers, of which its weight is made.
    terms
        The terms of the round.
    stream
        Draws of the rounding.

    Raises
    ------
    NotFiniteError
        If the change holds NaN or infinity.
    RunError
        If the number of examples is no whole number from 0 to ``terms.most_examples``, or
        the change would have to be scaled down and cannot be.
    """
    num_examples = _number(metrics, NUM_EXAMPLES)
    if num_examples != int(num_examples) or not 0 <= num_examples <= terms.most_examples:
        raise RunError(
            f"{num_examples:g} examples, and a sum takes whole numbers up to most-examples "
            f"= {terms.most_examples}: set it higher"
        )
    largest, changes, scaled = 0.0, [], False
    further = tuple(f"{record}/" for record in terms.records)
    for (name, array), limit in zip(
        trained.items(), ranges(trained, terms).values(), strict=True
    ):
        change = np.subtract(array, sent[name], dtype=np.float64).reshape(-1) / limit
        size = float(np.abs(change).max(initial=0.0))
        if not math.isfinite(size):
            raise NotFiniteError(f"what was trained of {name} holds NaN or infinity")
        is_trained = array.dtype.kind == "f" and name not in terms.statistics
        is_further = bool(further) and name.startswith(further)
        if size > 1.0 and (is_further or (is_trained and terms.exact)):
            raise RunError(
                f"{name} is beyond the range of a sum, and this method cannot scale it "
                f"down: set clipping-range = {terms.clipping_range:g} higher"
            )
        if is_trained and not is_further:
            largest = max(largest, size)
        elif size > 1.0:
            scaled, change = True, np.clip(change, -1.0, 1.0)
        changes.append((is_trained, change))
    # The whole change is scaled, so that it keeps its direction.
    scale = 1.0 / largest if largest > 1.0 else 1.0
    moves = (scale * change for is_trained, change in changes if is_trained)
    length = terms.clipping_range**2 * sum(float(np.dot(move, move)) for move in moves)
    weight, still, extra, clipped = _weights(metrics, num_examples, length, terms)
    values = [c * (weight * scale if is_trained else still) for is_trained, c in changes]
    flat = np.concatenate(values) if values else np.zeros(0)
    if flat.size != terms.num_words:
        raise RunError(f"{flat.size} numbers, and the message asks for {terms.num_words}")
    body = quantised(flat, terms.steps, stream).astype(terms.dtype)
    head = np.zeros(HEAD_SIZE, np.uint64)
    head[:3] = 1, int(num_examples), int(scaled or clipped or scale < 1.0)
    head[3:_SUMMED] = [round(number * terms.scalar_steps) for number in (weight, extra)]
    return with_check(Part(head, body), terms)


def _weights(
    metrics: Mapping[str, MetricValue], num_examples: float, length: float, terms: Terms
) -> tuple[float, float, float, bool]:
    """Return a client's weights, from 0 to 1, and whether one was bounded.

    The first is that of what was trained, as the head can hold it, the second that of what
    was measured, and the third what a method adds up beside them.
    """
    by_examples = terms.weight == "examples"
    prior = num_examples / terms.most_examples if by_examples else float(num_examples > 0)
    weight, extra, clipped = prior, 0.0, False
    if not prior:
        return 0.0, 0.0, 0.0, False
    if terms.form == "per-step":
        steps = _number(metrics, NUM_STEPS)
        weight = prior / steps if steps else 0.0
        extra, clipped = prior * min(steps / MOST_STEPS, 1.0), steps > MOST_STEPS
    elif terms.form in ("tilted", "raised"):
        loss = _number(metrics, terms.loss)
        clipped, loss = loss > terms.most_loss, min(max(loss, 0.0), terms.most_loss)
        if terms.form == "tilted":
            exponent = terms.rate * loss - max(terms.rate * terms.most_loss, 0.0)
            weight = prior * math.exp(exponent)
        else:
            raised = loss + _FLOOR
            weight = prior * (raised / (terms.most_loss + _FLOOR)) ** terms.rate
            rate = _number(metrics, LEARNING_RATE)
            sent = weight * terms.rate * length / (raised * rate)
            extra = min(sent / MOST_SENT, 1.0)
            clipped = clipped or sent > MOST_SENT
    steps_of_head = terms.scalar_steps
    weight = round(weight * steps_of_head) / steps_of_head
    return weight, prior if terms.form == "per-step" else weight, extra, clipped


def _number(metrics: Mapping[str, MetricValue], name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, list) or value is None or not math.isfinite(value) or value < 0:
        raise RunError(f"a secure sum needs {name}, a number >= 0, and it is {value}")
    return float(value)


def _divisors(total: Part, terms: Terms) -> tuple[float, float]:
    """Return what sums of trained numbers, and of measured ones, are divided by."""
    weight, extra = (int(word) / terms.scalar_steps for word in total.head[3:_SUMMED])
    num_examples = int(total.head[1]) / terms.most_examples
    if terms.form == "per-step":
        steps = extra * MOST_STEPS
        return (num_examples**2 / steps if steps else 0.0), num_examples
    return weight + (extra * MOST_SENT if terms.form == "raised" else 0.0), weight


def has_weight(total: Part, terms: Terms) -> bool:
    """Return whether a sum has a mean: some client has examples, and a weight."""
    return min(int(total.head[1]), *_divisors(total, terms)) > 0


def num_summed(total: Part, terms: Terms) -> int:
    """Return how many clients a sum counts, of those that count alike."""
    if terms.weight == "clients" and terms.form == "plain":
        return round(int(total.head[3]) / terms.scalar_steps)
    return int(total.head[0])


def with_check(part: Part, terms: Terms) -> Part:
    """Return words with their check words, by odd factors that all know.

    So no single changed word stays unseen, and of several few.
    """
    factors = mask(terms.session.to_bytes(32, "little"), terms)
    head = part.head.copy()
    checked = _SUMMED + 1
    head[_SUMMED] = np.dot(factors.body | factors.body.dtype.type(1), part.body)
    head[checked] = np.dot(factors.head[:checked] | np.uint64(1), head[:checked])
    return Part(head, part.body)


def is_whole(total: Part, terms: Terms) -> bool:
    """Return whether the check words of a sum are those of the sum."""
    # Those of the bodies were added up without their carry.
    of_body = with_check(total, terms).head[_SUMMED]
    if int(of_body) != int(total.head[_SUMMED]) % 2**terms.bits:
        return False
    checked = _SUMMED + 1
    factors = mask(terms.session.to_bytes(32, "little"), terms).head[:checked]
    in_sum = np.dot(factors | np.uint64(1), total.head[:checked])
    return bool(in_sum == total.head[checked])


def decoded(arrays: Mapping[str, NDArray[Any]], total: Part, terms: Terms) -> Arrays:
    """Return the mean of the models and of further records, in the arrays' dtypes.

    Parameters
    ----------
    arrays
        What was sent, as far as it comes back.
    total
        The sum of the words of some clients, which :func:`has_weight`.
    terms
        The terms of the round.
    """
    count = int(total.head[0])
    sums = dequantised(total.body, count, terms.steps)
    trained, measured = _divisors(total, terms)
    new: Arrays = {}
    start = 0
    for (name, array), limit in zip(
        arrays.items(), ranges(arrays, terms).values(), strict=True
    ):
        is_trained = array.dtype.kind == "f" and name not in terms.statistics
        change = sums[start : start + array.size].reshape(array.shape)
        change = change * (limit / (trained if is_trained else measured))
        moved = np.asarray(array, np.float64) + change
        rounded = np.rint(moved) if array.dtype.kind in "biu" else moved
        new[name] = np.asarray(rounded).astype(array.dtype)
        start += array.size
    return new


# -------------------------------------------------------------------------------- the masks


def mask(key: bytes, terms: Terms) -> Part:
    """Return the mask of a secret of 32 bytes: a stream of AES-256 in counter mode.

    No secret makes two masks, so that the counter may begin at 0.
    """
    size = terms.num_words
    num_bytes = 8 * HEAD_SIZE + terms.dtype.itemsize * size
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    stream = cipher.update(bytes(num_bytes))
    head = np.frombuffer(stream, "<u8", HEAD_SIZE).astype(np.uint64)
    body = np.frombuffer(stream, terms.dtype.newbyteorder("<"), size, 8 * HEAD_SIZE)
    return Part(head, body.astype(terms.dtype))


def as_rows(
    items: Sequence[bytes], width: int, count: int | None = None
) -> NDArray[np.uint8]:
    """Return byte strings as rows of an array; short and missing ones end in zeros."""
    rows = [item.ljust(width, b"\0") for item in items]
    rows += [bytes(width)] * ((count or 0) - len(items))
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), width)
