"""Secure sums on the server: it sees what its clients' changes add up to, and no more.

A stage of the round. It makes two exchanges before the message to train, takes in the
masked replies in place of the method, and gives the method one reply, the mean, after a
last exchange that unmasks the sum. A round whose sum does not come out is void: the model
stays. It names whom the next round leaves out, where that can be known:

- whose secret is another than it said, or whose share is another than it was given: found
  by the digests that each client gives of its secret and of all shares;
- of whom two others complain that its shares do not fit their digests;
- where the words do not add up, half of the round's clients, then half of those that are
  left: a search for one liar.

Of many clients each masks and shares with some neighbours alone, who are drawn anew in each
round; see :func:`~fedsuite.messages.secure_sums.usual_neighbours`.
"""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.logs import ServerLogger
from fedsuite.core.rng import numpy_stream
from fedsuite.messages import secrets_shared as secrets
from fedsuite.messages.decomposition import SLOW_VERSION
from fedsuite.messages.records import ARRAYS, EVALUATE, HELD, TRAIN, Arrays, ConfigValue
from fedsuite.messages.secure_sums import (
    ACTIVE,
    CLIENTS,
    FEWEST,
    GONE,
    KEYS,
    RECORD,
    SHARES,
    UNMASK,
    Part,
    Terms,
    as_rows,
    decoded,
    further_name,
    has_weight,
    is_whole,
    mask,
    neighbourhood,
    num_summed,
    refusal,
    reply_spec,
    ring_of,
    sum_errors,
    usual_neighbours,
    usual_threshold,
)
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.contract import MethodContract
from fedsuite.rounds.declaration import Summed
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.secure_rules import rate_of
from fedsuite.rounds.stage import Stage, State
from fedsuite.rounds.validation import SUM, ClientReply, RecordSpec

logger = ServerLogger(__name__)

_PER_ATTEMPT = 1_000_000
"""Sessions of one attempt at most; its number is a clock's in milliseconds."""


class Round(Protocol):
    """What a round gives the stage."""

    server_round: int
    attempt: int
    round_metrics: dict[str, float]

    def exchange(self, exchange: Exchange) -> Iterable[ClientReply]:
        """Make one more exchange inside the round."""


class SecureSums(Stage):
    """Turns a round's masked replies into one, their mean.

    Parameters
    ----------
    keys
        The strategy: its keys, one of which asks for sums, and what it says of sums.
    seed
        The experiment's seed.
    a_round
        What makes the exchanges.

    Attributes
    ----------
    terms
        The terms of the last round; None before the first.
    active
        The clients whose words the last round added up.
    total
        Their sum without masks; None where it did not come out.
    """

    name: ClassVar[str] = "secure-sums"

    def __init__(self, keys: MethodContract, seed: int, a_round: Round) -> None:
        self._keys = keys
        self._seed = seed
        self._round = a_round
        self._how = type(keys).summed() or Summed()
        self._session = 0
        self._sent: Arrays = {}
        self._places: dict[str, tuple[str, str]] = {}
        self.terms: Terms | None = None
        self.total: Part | None = None
        self._sum: Part | None = None
        self.active: list[int] = []
        self._asked: list[int] = []
        self._complaints: dict[int, int] = {}
        self._left_out: set[int] = set()
        self._suspects: list[int] = []
        self._public: dict[int, bytes] = {}
        self._near: dict[int, dict[int, int]] = {}
        self._sharers: list[int] = []
        self._seeds: dict[int, bytes] = {}
        self._digests: dict[int, np.ndarray] = {}

    @property
    def is_masked(self) -> bool:
        """Whether words come under masks."""
        return self._keys.secure_aggregation == "masked"

    # -------------------------------------------------------------------------------- ask

    @override
    def trusted(self, client_ids: Sequence[int]) -> Sequence[int]:
        """Return the clients without those that lied, and without half of the suspects."""
        ids = [k for k in client_ids if k not in self._left_out]
        half = self._suspects[: (len(self._suspects) + 1) // 2]
        out = [k for k in half if k in ids][: max(len(ids) - FEWEST, 0)]
        return [k for k in ids if k not in out]

    @override
    def ask(self, exchange: Exchange) -> Exchange:
        """Return the message to train, after the exchanges that go before it."""
        back = exchange.expected.arrays
        known = {ARRAYS, *self._how.records}
        if set(back) != known or exchange.expected_of or ARRAYS not in exchange.shared:
            raise ConfigError(
                "secure-aggregation needs a method whose clients train one shared model, "
                "and send back that and what it says of itself in SUMS"
            )
        sent = exchange.shared[ARRAYS]
        # What clients hold already does not travel to them, and further records are changes
        # of nothing: both stand for themselves.
        self._sent, self._places = {}, {}
        for record, spec in back.items():
            for name, (shape, dtype) in spec.items():
                is_change = record == ARRAYS and name in sent
                place = name if is_change else further_name(record, name)
                self._sent[place] = sent[name] if is_change else np.zeros(shape, dtype)
                self._places[place] = (record, name)
        # Under noise all clients are drawn from, also those that lied.
        self._asked = list(self.trusted(exchange.client_ids))
        self._complaints, self.total = {}, None
        self._near = {}
        is_first = self.terms is None
        self.terms = terms = self._new_terms()
        if is_first and self.is_masked:
            self._tell_once(terms)
        ids, own = self._asked, exchange.own
        if self.is_masked:
            self._sharers = ids = self._exchange_secrets(terms)
            own = {k: {**own.get(k, {}), **self._shares_for(k)} for k in ids}
        who: dict[str, ConfigValue] = {CLIENTS: ids} if self.is_masked else {}
        words: RecordSpec = reply_spec(TRAIN, terms)
        bounds = exchange.expected.bounds
        return replace(
            exchange,
            client_ids=ids,
            own=own,
            config={**exchange.config, **terms.config(), **who},
            expected=replace(
                exchange.expected,
                arrays={RECORD: words},
                # What a client says of itself stays with it; the layer's number does not.
                metrics=(),
                bounds={k: v for k, v in bounds.items() if k == SLOW_VERSION},
                stand_ins={},
            ),
        )

    def _tell_once(self, terms: Terms) -> None:
        """Tell with whom clients mask, and what leaves them without masks."""
        others = terms.neighbours or terms.num_clients - 1
        logger.tell(
            "secure sums: each of %d clients masks with %d others, and %d of the %d that "
            "hold its shares unmask it",
            *(terms.num_clients, others, terms.threshold, terms.holders),
        )
        if self._keys.fraction(EVALUATE):
            logger.warning(
                "secure sums hide training alone: each client's scores at evaluation, and "
                "its rows there, are told in the clear; a site refuses by message-types in "
                "its policy.toml"
            )

    def _new_terms(self) -> Terms:
        # Clients refuse a session that is not above the last one. An attempt's number is
        # above those before it, also where the wall clock has gone back; the clock makes it
        # rise from one run to the next where servers have no number.
        first = self._round.attempt * _PER_ATTEMPT or time.time_ns()
        self._session = max(first, self._session + 1)
        keys, count = self._keys, len(self._asked)
        chosen = keys.reconstruction_threshold
        # A threshold that somebody chose is one of all clients.
        neighbours = 0 if chosen else usual_neighbours(count)
        ring = numpy_stream(self._seed, "secure-ring", self._round.server_round)
        terms = Terms(
            session=self._session,
            threshold=chosen or usual_threshold(neighbours + 1 if neighbours else count),
            clipping_range=keys.clipping_range,
            most_examples=keys.most_examples,
            num_clients=count,
            num_words=sum(array.size for array in self._sent.values()),
            bits=keys.quantisation_bits,
            masked=self.is_masked,
            statistics=tuple(
                name
                for name, array in self._sent.items()
                if array.dtype.kind == "f" and is_statistic(name, array)
            ),
            **self._weighing(),
            neighbours=neighbours,
            ring=int(ring.integers(1 << 62)),
        )
        if reason := refusal(terms):
            raise QuorumMissed(Kind.TOO_FEW, count, reason, "a secure sum needs")
        return terms

    def _weighing(self) -> dict[str, Any]:
        """Return the terms that say what a client counts with."""
        how, values = self._how, self._keys.values()
        by_examples = how.weight == "examples" or (
            how.examples_if and values[how.examples_if]
        )
        bound = values[how.most_loss] if how.most_loss else 0.0
        return {
            "weight": "examples" if by_examples else "clients",
            "form": "tilted" if how.form == "softmax" else how.form,
            "rate": rate_of(how, values),
            "loss": how.loss,
            "most_loss": min(self._keys.most_loss, bound or math.inf),
            "records": (*how.records, HELD),
            "exact": how.exact,
        }

    def _exchange_secrets(self, terms: Terms) -> list[int]:
        """Return the clients that gave keys and shares; remember what they gave."""
        replies = self._answers(KEYS, self._asked)
        keys = _distinct({k: _rows(record["keys"]) for k, record in replies.items()})
        self._enough(keys, "keys that can be used")
        self._public = {k: pair[0] for k, pair in keys.items()}
        self._meet(list(keys))
        pairs = {k: b"".join(pair) for k, pair in keys.items()}
        signatures = {k: bytes(replies[k]["signature"]) for k in keys}
        width = len(next(iter(pairs.values())))
        of_near = {
            k: {
                "keys": as_rows([pairs[other] for other in near], width),
                "signatures": as_rows(
                    [signatures[other] for other in near], secrets.SIGNATURE_BYTES
                ),
            }
            for k, near in self._near.items()
        }
        config: dict[str, ConfigValue] = {CLIENTS: list(keys)}
        replies = self._answers(SHARES, list(keys), config, of_near)
        self._near = {k: self._near[k] for k in replies}
        self._enough(replies, "shares")
        self._seeds = {k: bytes(record["seed"]) for k, record in replies.items()}
        self._digests = {
            k: record["digests"].reshape(-1, 2, 32) for k, record in replies.items()
        }
        self._tokens = {k: record["tokens"] for k, record in replies.items()}
        return list(replies)

    def _meet(self, client_ids: Sequence[int]) -> None:
        """Note each client's neighbourhood: its members, and the rows that are theirs."""
        assert self.terms is not None
        ring = ring_of(client_ids, self.terms)
        self._near = {
            k: {other: row for row, other in enumerate(neighbourhood(ring, k, self.terms))}
            for k in client_ids
        }

    def _shares_for(self, client_id: int) -> dict[str, Arrays]:
        """Return the shares for a client, a row for each of its neighbourhood."""
        near = self._near[client_id]
        tokens = np.zeros((len(near), secrets.TOKEN_BYTES), np.uint8)
        digests = np.zeros((len(near), 2 * 32), np.uint8)
        for sharer, row in near.items():
            if sharer in self._tokens:
                place = self._near[sharer][client_id]
                tokens[row] = self._tokens[sharer][place]
                digests[row] = self._digests[sharer][place].reshape(-1)
        return {RECORD: {"tokens": tokens, "digests": digests}}

    # ---------------------------------------------------------------------------- collect

    @override
    def open(self, exchange: Exchange) -> None:
        self.active = []
        self._sum = None if self.terms is None else Part.zero(self.terms)

    @override
    def reply(self, reply: ClientReply) -> Iterable[ClientReply]:
        record = reply.arrays[RECORD]
        complained = np.flatnonzero(record.get("complaints", np.zeros(0)))
        near = self._near.get(reply.client_id, {})
        for accused in (k for k, row in near.items() if row in complained):
            self._complaints[accused] = self._complaints.get(accused, 0) + 1
        if not complained.size and self._sum is not None:
            self._sum = self._sum.plus(Part(record["head"], record["body"]))
            self.active.append(reply.client_id)
        return ()

    @override
    def rest(self) -> Iterable[ClientReply]:
        """Return the mean as one reply.

        Raises
        ------
        QuorumMissed
            If the sum does not come out: the round is void.
        """
        terms, total = self.terms, self._sum
        if terms is None or total is None:
            return ()
        for accused, times in self._complaints.items():
            if times > 1:
                self._leave_out(accused, "its shares fit no digest")
        self._enough(self.active, "vectors")
        if self.is_masked:
            total = self._unmasked(terms, total)
        count, num_examples, scaled = (int(word) for word in total.head[:3])
        plausible = (
            count == len(self.active) and num_examples <= count * terms.most_examples
        )
        if not (plausible and scaled <= count and is_whole(total, terms)):
            raise self._void("the words do not add up", self._suspect())
        self._clear()
        if not has_weight(total, terms):
            reason = "no client has examples, and a weight"
            raise QuorumMissed(Kind.NO_EXAMPLES, count, reason, "one")
        self.total = total
        self._round.round_metrics |= {
            "summed_clients": float(count),
            "summed_examples": float(num_examples),
            "scaled_clients": float(scaled),
        }
        if terms.neighbours:
            self._round.round_metrics["sum_neighbours"] = float(terms.neighbours)
        # All records are there, also one that has no array, such as FedPer's of one layer.
        records: dict[str, Arrays] = {ARRAYS: {}}
        mean = decoded(self._sent, total, terms)
        for place, array in mean.items():
            record, name = self._places[place]
            records.setdefault(record, {})[name] = array
        for place, error in sum_errors(self._sent, mean, total, terms).items():
            of_model = self._places[place][0] == ARRAYS
            name = "sum_error" if of_model else "records_sum_error"
            known = self._round.round_metrics.get(name, 0.0)
            self._round.round_metrics[name] = max(known, error)
        alike = num_summed(total, terms)
        return (ClientReply(SUM, records, {}, float(num_examples), num_summed=alike),)

    def _unmasked(self, terms: Terms, total: Part) -> Part:
        """Return the sum without masks."""
        active, public = self.active, self._public
        gone = [k for k in self._sharers if k not in active]
        config: dict[str, ConfigValue] = {ACTIVE: active}
        if gone:
            config[GONE] = gone
        replies = self._answers(UNMASK, active, config)
        self._enough(replies, "answers to unmask")
        rows = {k: record["shares"] for k, record in replies.items()}
        seeds = {k: self._secret(k, 0, rows) for k in active}
        private_keys = {k: self._secret(k, 1, rows) for k in gone}
        for seed in seeds.values():
            total = total.minus(mask(seed, terms))
        for lost, private in private_keys.items():
            for other in (k for k in active if k in self._near[lost]):
                pair = mask(secrets.mask_key(private, public[other]), terms)
                total = total.minus(pair) if other > lost else total.plus(pair)
        return total

    def _secret(self, owner: int, which: int, rows: Mapping[int, np.ndarray]) -> bytes:
        """Return a client's seed (0) or private key (1), from the shares that fit.

        Parameters
        ----------
        owner
            Whose secret it is.
        which
            Which of the two.
        rows
            Client to the shares that it holds, a row for each of its neighbourhood.
        """
        assert self.terms is not None
        fitting, threshold = [], self.terms.threshold
        width = (secrets.SEED_SHARE_BYTES, secrets.KEY_SHARE_BYTES)[which]
        for holder, place in self._near[owner].items():
            if holder not in rows:
                continue
            share = bytes(rows[holder][self._near[holder][owner]][:width])
            if secrets.digest(share) == bytes(self._digests[owner][place][which]):
                fitting.append(share)
            else:
                self._leave_out(holder, "a share that it gave is another than it was given")
        if len(fitting) < threshold:
            raise self._void(f"{len(fitting)} shares fit, of {threshold} that are needed")
        try:
            secret = secrets.combine_shares(fitting[:threshold])
            right = (
                secrets.digest(secret) == self._seeds[owner]
                if which == 0
                else secrets.public_of(secret) == self._public[owner]
            )
        except ValueError:
            right = False
        if not right:
            self._leave_out(owner, "its shares make no secret of its own")
            raise self._void("a client's shares make no secret")
        return secret

    # -------------------------------------------------------------------------- who is out

    def _leave_out(self, client_id: int, why: str) -> None:
        if client_id not in self._left_out:
            self._left_out.add(client_id)
            logger.warning("client %s is left out from now on: %s", client_id, why)

    def _void(self, why: str, next_out: str = "") -> QuorumMissed:
        """Return what ends a round whose sum did not come out."""
        return QuorumMissed(
            Kind.NOT_SUMMED, 0, f"the secure sum is void: {why}{next_out}", "a sum needs"
        )

    def _suspect(self) -> str:
        """Suspect the clients whose words are in a wrong sum; return it in words."""
        known = [k for k in self._suspects if k in self.active] or self.active
        order = numpy_stream(self._seed, "secure-suspects", self._round.server_round)
        self._suspects = [known[place] for place in order.permutation(len(known))]
        if len(self._suspects) == 1:
            self._leave_out(self._suspects.pop(), "its words do not add up")
            return ""
        names = ", ".join(map(str, sorted(self._suspects)))
        return f"; one of clients {names} may be to blame, and half of them rest next"

    def _clear(self) -> None:
        """Hear that the words of a round add up: who was in it is no suspect."""
        self._suspects = [k for k in self._suspects if k not in self.active]
        if len(self._suspects) == 1:
            self._leave_out(self._suspects.pop(), "sums come out without it alone")

    # --------------------------------------------------------------------------- machinery

    def _answers(
        self,
        kind: str,
        client_ids: Sequence[int],
        config: Mapping[str, ConfigValue] | None = None,
        own: Mapping[int, Arrays] | None = None,
    ) -> dict[int, Arrays]:
        """Return the arrays with which the clients answer one of the stages."""
        assert self.terms is not None
        records: RecordSpec = reply_spec(kind, self.terms)
        exchange = Exchange(
            kind,
            client_ids,
            # Records of each client's own, though empty: no node answers for another's.
            own={k: {RECORD: own[k]} if own else {} for k in client_ids},
            config={**self.terms.config(), **(config or {})},
        )
        expected = replace(exchange.expected, arrays={RECORD: records})
        replies = self._round.exchange(replace(exchange, expected=expected))
        return {reply.client_id: reply.arrays[RECORD] for reply in replies}

    def _enough(self, client_ids: Collection[int], what: str) -> None:
        """End the round where some neighbourhood has too few of these clients left."""
        assert self.terms is not None
        needed, left = self.terms.threshold, set(client_ids)
        # Before neighbours are drawn, and without masks, it is a matter of all.
        parts = self._near.values() or [left]
        count = min(len(left.intersection(near)) for near in parts)
        if count < needed:
            where = " of one neighbourhood" if self.terms.neighbours else ""
            raise QuorumMissed(
                Kind.TOO_FEW,
                count,
                f"the secure sum is void: {what} of {count} clients{where}, and it needs "
                f"{needed}",
                f"the {needed} that can unmask a sum",
            )

    @override
    def state(self) -> State:
        return {"left-out": sorted(self._left_out), "suspects": list(self._suspects)}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._left_out = set(state["left-out"])
        self._suspects = list(state["suspects"])


def _rows(array: np.ndarray) -> list[bytes]:
    return [bytes(row) for row in array]


def _distinct(keys: Mapping[int, list[bytes]]) -> dict[int, list[bytes]]:
    """Return the clients whose keys can be read and are nobody else's."""
    times: dict[bytes, int] = {}
    for key in (key for pair in keys.values() for key in pair):
        times[key] = times.get(key, 0) + 1
    return {
        k: pair
        for k, pair in keys.items()
        if all(times[key] == 1 and secrets.is_public_key(key) for key in pair)
    }
