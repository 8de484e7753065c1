"""A client whose changes of the model leave it under masks alone.

K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017, with an honest but curious server: keys, shares of two secrets, a masked vector,
and the shares that unmask the sum.

What a session keeps lies in Flower's ``context.state``, never among the versions that a
server can name and go back to. It is erased when the sum is unmasked, at an error, and when
the next session begins; the session's number only rises.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from fedsuite.core.errors import ConfigError, RunError, one_line
from fedsuite.core.rng import numpy_stream
from fedsuite.messages import secrets_shared as secrets
from fedsuite.messages.decomposition import SLOW_VERSION
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    FEWEST_PARTNERS,
    HELD,
    NODE_KEY_VARIABLE,
    NUM_EXAMPLES,
    PARTNERS,
    STORED_STATE,
    TRAIN,
    Arrays,
    MetricValue,
    Reply,
    Request,
)
from fedsuite.messages.secure_sums import (
    ACTIVE,
    CLIENTS,
    GONE,
    KEYS,
    RECORD,
    SHARES,
    STAGES,
    UNMASK,
    Part,
    Terms,
    as_rows,
    further_name,
    mask,
    neighbourhood,
    ring_of,
    words_of,
    words_to_sign,
)
from fedsuite.training.app import Answering

SPENT = -1
"""Stage of a session that is over for this client."""


@dataclass
class _Secrets:
    """What a session keeps.

    Parameters
    ----------
    session
        Its number; that of the last session where ``stage`` is :data:`SPENT`.
    stage
        Number of the last stage that was answered.
    terms
        What was agreed on, as text.
    own
        Private and public key for masks, the same for encryption, seed, and its shares.
    ids, keys
        The clients of its neighbourhood; their two public keys, one behind the other.
    sharers, shares
        Those of them whose shares came; of each its seed's and its key's.
    """

    session: int = 0
    stage: int = SPENT
    terms: str = ""
    own: list[bytes] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    sharers: list[int] = field(default_factory=list)
    shares: list[bytes] = field(default_factory=list)

    @classmethod
    def of(cls, state: RecordDict, name: str) -> "_Secrets":
        """Return what a client keeps; nothing where it keeps none."""
        record = state.get(name)
        if not isinstance(record, ConfigRecord):
            return cls()
        values: dict[str, Any] = dict(record.items())
        return cls(**values)

    def keep(self, state: RecordDict, name: str) -> None:
        """Put it into a context's state; an empty list stays out."""
        kept: dict[str, Any] = {k: v for k, v in vars(self).items() if v != []}
        state[name] = ConfigRecord(kept)

    def key_of(self, client_id: int, place: int) -> bytes:
        """Return a client's public key for masks (0) or for encryption (1)."""
        return self.keys[2 * self.ids.index(client_id) + place]


@dataclass(frozen=True)
class Partners:
    """With whom a site adds up.

    Parameters
    ----------
    points
        Public keys that their nodes sign with; empty takes all, signed or not.
    fewest
        Fewest clients, this one among them, in a sum.
    """

    points: frozenset[bytes] = frozenset()
    fewest: int = 0

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> "Partners":
        """Return what a node's operator says.

        Raises
        ------
        ConfigError
            If it cannot be read.
        """
        lines = filter(None, str(node_config.get(PARTNERS, "")).split(","))
        fewest = node_config.get(FEWEST_PARTNERS, 0)
        try:
            points = secrets.public_points(lines)
        except ValueError as error:
            raise ConfigError(f"node-config {PARTNERS}: {error}") from None
        if not isinstance(fewest, int) or fewest < 0:
            raise ConfigError(
                f"node-config {FEWEST_PARTNERS} = {fewest!r}: expected a number of clients"
            )
        return cls(points, fewest)

    def check_count(self, count: int) -> None:
        """Refuse a sum of fewer clients than this site wants."""
        if count < self.fewest:
            raise RunError(
                f"refused: a sum of {count} clients, and this site wants {self.fewest}"
            )

    def check(
        self, terms: Terms, ids: list[int], keys: list[bytes], signatures: list[bytes]
    ) -> None:
        """Refuse a round with a client whose keys no partner has signed.

        One partner stands for one client: whose keys a server has put there twice would
        have more of the shares than its own.
        """
        self.check_count(len(ids))
        if not self.points:
            return
        if len(signatures) != len(ids):
            raise RunError("refused: the clients' keys come without signatures")
        signers = set()
        for place, client_id in enumerate(ids):
            pair = keys[2 * place : 2 * place + 2]
            words = words_to_sign(terms, client_id, pair)
            signer = secrets.signer_of(signatures[place], words)
            if signer not in self.points:
                raise RunError(
                    f"refused: the keys of client {client_id} are signed by none of this "
                    f"site's partners ({PARTNERS})"
                )
            signers.add(signer)
        if len(signers) != len(ids):
            raise RunError("refused: one partner stands there as several clients")


class SecureClient:
    """A client, or a wrapper of one, whose training adds to a sum and leaves no more.

    Parameters
    ----------
    client
        What trains and is scored.
    context
        Flower's context, in whose state a session keeps its secrets.
    seed
        The experiment's seed, of the rounding.
    masked
        Whether words leave under masks alone; False sends them bare, in a simulation.
    """

    def __init__(
        self, client: Answering, context: Context, seed: int = 0, *, masked: bool = True
    ) -> None:
        self._client = client
        self._state = context.state
        self._seed = seed
        self._masked = masked
        self._partners = Partners.of(context.node_config)

    def answer(self, request: Request) -> Reply:
        """Answer a request.

        Raises
        ------
        RunError
            If the message asks for anything that shows this client's own work, comes out of
            turn, or is on other terms than the session began with.
        """
        kind = request.message_type
        if kind == EVALUATE:
            return self._client.answer(request)
        if kind not in STAGES:
            raise RunError(f"refused: {kind} would show what this client alone has")
        terms = Terms.read(request.config)
        if terms.masked != self._masked:
            raise RunError("refused: the message says otherwise of masks than the run")
        if not self._masked:
            return self._bare(request, terms)
        return self._in_turn(request, terms)

    def _bare(self, request: Request, terms: Terms) -> Reply:
        if request.message_type != TRAIN:
            raise RunError(f"refused: {request.message_type} belongs to masks")
        part, reply = self._trained(request, terms)
        return _reply(part.arrays(), request, reply)

    def _in_turn(self, request: Request, terms: Terms) -> Reply:
        name, stage = f"secure-sum.{request.client_id}", STAGES.index(request.message_type)
        kept = _Secrets.of(self._state, name)
        # Spent before the work: an error in it ends the session for this client.
        _Secrets(max(kept.session, terms.session)).keep(self._state, name)
        if stage == 0 and terms.session <= kept.session:
            raise RunError(f"refused: session {terms.session} is over")
        if stage and (kept.stage != stage - 1 or kept.terms != repr(terms)):
            raise RunError(
                f"refused: {request.message_type} out of turn, or on other terms"
            )
        kept = kept if stage else _Secrets(terms.session, terms=repr(terms))
        work: Mapping[str, Callable[[Request, Terms, _Secrets], Reply]] = {
            KEYS: self._make_keys,
            SHARES: self._share,
            TRAIN: self._add,
            UNMASK: self._unmask,
        }
        reply = work[request.message_type](request, terms, kept)
        # Who complains has no sharers, and is out.
        if stage < STAGES.index(TRAIN) or (stage < len(STAGES) - 1 and kept.sharers):
            kept.stage = stage
            kept.keep(self._state, name)
        return reply

    # ------------------------------------------------------------------------- the stages

    def _make_keys(self, request: Request, terms: Terms, kept: _Secrets) -> Reply:
        kept.own = [*secrets.new_key_pair(), *secrets.new_key_pair()]
        public = [kept.own[1], kept.own[3]]
        words = words_to_sign(terms, request.client_id, public)
        arrays = {
            "keys": as_rows(public, secrets.PUBLIC_KEY_BYTES),
            "signature": as_rows([_signature(words)], secrets.SIGNATURE_BYTES),
        }
        return _reply(arrays, request)

    def _share(self, request: Request, terms: Terms, kept: _Secrets) -> Reply:
        keyed, own_id = _ints(request, CLIENTS), request.client_id
        if len(set(keyed)) != len(keyed) or own_id not in keyed:
            raise RunError("refused: a client stands there twice, or this one does not")
        kept.ids = ids = neighbourhood(ring_of(keyed, terms), own_id, terms)
        count = len(ids)
        if not terms.threshold <= count <= len(keyed) <= terms.num_clients:
            raise RunError(f"refused: {count} clients are too few, or more than agreed")
        keys = _rows(request, "keys", count, 2 * secrets.PUBLIC_KEY_BYTES)
        half = secrets.PUBLIC_KEY_BYTES
        kept.keys = [key for pair in keys for key in (pair[:half], pair[half:])]
        if len(set(kept.keys)) != 2 * count:
            raise RunError("refused: a public key stands there twice")
        if [kept.key_of(own_id, 0), kept.key_of(own_id, 1)] != [kept.own[1], kept.own[3]]:
            raise RunError("refused: this client's public keys were changed")
        signatures = _rows(request, "signatures", count, secrets.SIGNATURE_BYTES)
        self._partners.check(terms, ids, kept.keys, signatures)
        seed = os.urandom(32)
        of_seed = secrets.create_shares(seed, terms.threshold, count)
        of_key = secrets.create_shares(kept.own[0], terms.threshold, count)
        pairs = list(zip(of_seed, of_key, strict=True))
        kept.own += [seed, *pairs[ids.index(own_id)]]
        tokens = [
            secrets.sealed(self._agreed(kept, other), own_id, other, pair)
            if other != own_id
            else b""
            for other, pair in zip(ids, pairs, strict=True)
        ]
        digests = [secrets.digest(share) for pair in pairs for share in pair]
        arrays = {
            "tokens": as_rows(tokens, secrets.TOKEN_BYTES, terms.holders),
            "digests": as_rows(digests, 32, 2 * terms.holders),
            "seed": as_rows([secrets.digest(seed)], 32),
        }
        return _reply(arrays, request)

    def _add(self, request: Request, terms: Terms, kept: _Secrets) -> Reply:
        listed, own_id = _ints(request, CLIENTS), request.client_id
        ids = [k for k in kept.ids if k in listed]
        if own_id not in ids or len(set(listed)) != len(listed):
            raise RunError("refused: a client stands there twice, or this one does not")
        if len(ids) < terms.threshold:
            raise RunError(f"refused: {len(ids)} clients that gave shares are too few")
        self._partners.check_count(len(ids))
        shares, complaints = self._opened(request, terms, kept, ids)
        if complaints.any():
            nothing = Part.zero(terms).arrays()
            return _reply({**nothing, "complaints": complaints}, request)
        total, reply = self._trained(request, terms)
        total = total.plus(mask(kept.own[4], terms))
        for other in ids:
            if other != own_id:
                key = secrets.mask_key(kept.own[0], kept.key_of(other, 0))
                pair = mask(key, terms)
                total = total.plus(pair) if own_id > other else total.minus(pair)
        kept.sharers, kept.shares = ids, shares
        # What is left to do needs the others' shares alone.
        kept.own, kept.keys = [], []
        return _reply({**total.arrays(), "complaints": complaints}, request, reply)

    def _opened(
        self, request: Request, terms: Terms, kept: _Secrets, ids: list[int]
    ) -> tuple[list[bytes], NDArray[np.uint8]]:
        """Return the shares for this client, and of whom it complains."""
        count = len(kept.ids)
        tokens = _rows(request, "tokens", count, secrets.TOKEN_BYTES)
        digests = _rows(request, "digests", count, 64)
        shares: list[bytes] = []
        complaints = np.zeros(terms.holders, np.uint8)
        for place, other in enumerate(kept.ids):
            if other == request.client_id:
                shares += kept.own[5:7]
            elif other in ids:
                key = self._agreed(kept, other)
                pair = secrets.unsealed(key, other, request.client_id, tokens[place])
                said = digests[place]
                if pair is None or b"".join(map(secrets.digest, pair)) != said:
                    complaints[place] = 1
                    continue
                shares += pair
        return shares, complaints

    def _unmask(self, request: Request, terms: Terms, kept: _Secrets) -> Reply:
        listed, gone = _ints(request, ACTIVE), _ints(request, GONE)
        near = [k for k in listed + gone if k in kept.ids]
        active = [k for k in near if k in listed]
        # Both secrets of one client would show its words: nobody is on two lists.
        if sorted(near) != kept.sharers or request.client_id not in active:
            raise RunError("refused: the lists are not the clients that gave shares, once")
        if len(active) < terms.threshold:
            raise RunError(f"refused: the sum would be of {len(active)} clients alone")
        self._partners.check_count(len(active))
        shares = [b""] * len(kept.ids)
        for place, k in enumerate(kept.sharers):
            shares[kept.ids.index(k)] = kept.shares[2 * place + (k in gone)]
        arrays = {"shares": as_rows(shares, secrets.KEY_SHARE_BYTES, terms.holders)}
        return _reply(arrays, request)

    # --------------------------------------------------------------------------- machinery

    def _agreed(self, kept: _Secrets, other: int) -> bytes:
        return secrets.agreed_key(kept.own[2], kept.key_of(other, 1))

    def _trained(self, request: Request, terms: Terms) -> tuple[Part, Reply]:
        """Return this client's bare words, and the reply that they are of."""
        sent = request.arrays[ARRAYS]
        inner = {name: a for name, a in request.arrays.items() if name != RECORD}
        reply = self._client.answer(replace(request, arrays=inner))
        if set(reply.arrays) | {HELD} != {ARRAYS, *terms.records}:
            raise RunError("a secure sum is of other records than this client sends")
        stream = numpy_stream(
            self._seed, "secure-sum", request.server_round, request.client_id
        )
        trained, before = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
        for record, arrays in reply.arrays.items():
            for name, array in arrays.items():
                is_change = record == ARRAYS and name in sent
                place = name if is_change else further_name(record, name)
                trained[place] = array
                before[place] = sent[name] if is_change else np.zeros_like(array)
        return words_of(before, trained, reply.metrics, terms, stream), reply


def _reply(arrays: Arrays, request: Request, reply: Reply | None = None) -> Reply:
    """Return a reply that tells nothing but the arrays, and what the server said itself.

    Every client says 1 example.
    """
    metrics: dict[str, MetricValue] = {NUM_EXAMPLES: 1}
    version = request.config.get(SLOW_VERSION)
    if isinstance(version, int):
        # The layer of filter decomposition has all replies repeat its number.
        metrics[SLOW_VERSION] = version
    if reply is None:
        return Reply({RECORD: arrays}, metrics)
    if STORED_STATE in reply.metrics:
        metrics[STORED_STATE] = 1
    followed = {n: v for n, v in reply.followed.items() if request.config.get(n) == v}
    return Reply({RECORD: arrays}, metrics, followed)


def _signature(words: bytes) -> bytes:
    """Return this node's signature; zeros where it has no key, or a relay signs for it."""
    path = Path(os.environ.get(NODE_KEY_VARIABLE, ""))
    if not path.is_file():
        return bytes(secrets.SIGNATURE_BYTES)
    try:
        return secrets.signed(path, words)
    except OSError as error:
        raise RunError(f"this node's key cannot sign: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"this node's key cannot sign: {one_line(error)}") from None


def _ints(request: Request, name: str) -> list[int]:
    value = request.config.get(name, [])
    if not isinstance(value, list):
        raise RunError(f"{name} is no list of client numbers")
    return [item for item in value if isinstance(item, int)]


def _rows(request: Request, name: str, count: int, width: int) -> list[bytes]:
    """Return the first rows of an array of the message's own record, as bytes."""
    array = request.arrays.get(RECORD, {}).get(name)
    if array is None or array.dtype != np.uint8 or array.size < count * width:
        raise RunError(f"refused: the message has no {count} rows of {name}")
    flat = array.tobytes()
    return [flat[width * place : width * (place + 1)] for place in range(count)]
