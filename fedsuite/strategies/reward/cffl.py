"""CFFL: rewards by the validation accuracy of what a client uploads.

L. Lyu, X. Xu, Q. Wang, H. Yu, "Collaborative Fairness in Federated Learning", in Federated
Learning, Springer LNCS 12500, 2020, arXiv:2008.12161.

Equations used, as the authors' code has them. Each client j keeps a model w_j.

- j trains w_j; delta_j is what that added, each entry clipped to +-gamma; w_j <- w_j +
  delta_j; j uploads g_j, the share theta_u of delta_j of largest magnitude.
- a_j is the validation accuracy of w_g + g_j; x_j = a_j / sum_i a_i over the reputable
  clients; the paper's reputation is c_j = sinh(alpha x_j) / sum, r_j <- (r_j + c_j) / 2
  from equal ones.
- A client with r_j < c_th, the coefficient over the number of reputable clients, trains on
  alone for good; the others' reputations are divided by their sum.
- Of those left: G = sum_j (n_j / n) g_j, n all clients' examples; w_g <- w_g + G;
  w_j <- w_j + top_q(G) - rho_j g_j, rho_j = n_j / max n, q = floor(d rho_j r_j / max r).

A reward is applied to the kept model when the client trains next, and when it is scored.

Known to hold: with theta_u = 1, no clipping, no threshold, equal accuracies and sizes each
w_j is FedAvg's model.

Deviations, and what the sources leave open. The authors' code smooths first and takes
sinh afterwards, r = sinh(alpha (0.8 r + 0.2 x)) / sum from r = 0, so that sinh
compounds over rounds: ``cffl_reputation="code"``. Its threshold's coefficient is 1/3
for unequal sizes, the paper's 2/3, as far as we recall. Where theta_u = 1 the code
scores w_j, not w_g + g_j; here the server knows no w_j. The code's mask gives a client
with q = 0 all of G; here it gets nothing. rho_j takes out another amount than G put in,
as in the code. Its other weights of G (all 1; reputation), alpha's growth over rounds
and its pre-trained arm are left out. Each copy of a tied array counts among the largest
entries by itself. FedAKD's own version (update clipped by its length, next round from
w_g, the reward for scoring only) is another method. Statistics of normalisation layers
are sent whole, and averaged over the round's reputable clients.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    NO_WHOLE_MODEL,
    STATISTICS,
    UPDATE,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    ConfigValue,
    Exchange,
    OneOf,
    RecordSpec,
    Rule,
    Unless,
    Value,
    Vector,
    examples_of,
    key,
    pack,
    packed_size,
    parameter_names,
    part,
    spec_of,
    state,
    top_k,
    unpack,
    weighted_mean,
)
from fedsuite.strategies.reward.cgsv import total_update
from fedsuite.strategies.reward.reputation import (
    VALIDATION_DEFAULTS,
    Records,
    RewardStrategy,
    Validation,
    merged,
    moved,
    shares_of,
)

CODE_MEMORY = 0.8

Content = TypeVar("Content")


def paper_reputation(old: Vector, accuracies: Vector, alpha: float) -> Vector:
    """Return reputations, as shares of 1, from old ones and validation accuracies."""
    fresh = shares_of(np.sinh(alpha * shares_of(accuracies)))
    return shares_of((old + fresh) / 2)


def code_reputation(old: Vector, accuracies: Vector, alpha: float) -> Vector:
    """Return reputations as the authors' code does; ``old`` is 0 before the first round."""
    mean = CODE_MEMORY * old + (1 - CODE_MEMORY) * shares_of(accuracies)
    return shares_of(np.sinh(alpha * mean))


def reputable(
    reputation: Mapping[int, float], coefficient: float
) -> tuple[dict[int, float], set[int]]:
    """Return the reputations above the threshold, divided by their sum, and the rest.

    The threshold is ``coefficient``, 0 to 1, times the mean. The best client stays.
    """
    least = coefficient / len(reputation)
    best = max(reputation.values())
    # Rounding must not exclude all of equal clients.
    out = {k for k, value in reputation.items() if value < least and value < best}
    total = sum(value for k, value in reputation.items() if k not in out)
    return {k: v / total for k, v in reputation.items() if k not in out}, out


def reward_counts(size: int, reputation: Vector, num_examples: Vector) -> list[int]:
    """Return q_j, the number of entries of G that each reputable client gets."""
    shares = (reputation / reputation.max()) * (num_examples / num_examples.max())
    # The last bit must not turn a whole number into the one below.
    return [math.floor(size * share + 1e-9) for share in shares.tolist()]


class CFFL(RewardStrategy):
    """Clients keep a model, upload a part of its update, and get what they are worth."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds("CFFLClient", "keeps its model")

    DEFAULTS: ClassVar[Mapping[str, Value]] = VALIDATION_DEFAULTS
    FIXED: ClassVar[Mapping[str, Value]] = {"upload-noise-multiplier": 0.0}
    FIXED_REASON: ClassVar[str] = "noise would undo the choice of what is uploaded"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("travels", "method"),
            (Unless("travels", "all"),),
            "clients send statistics of the whole model beside what they choose of it",
            "leave it out, or choose another method",
        ),
    )
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **RewardStrategy.WITHOUT_EFFECT,
        **NO_WHOLE_MODEL,
    }

    upload_share: float = key(
        default=0.1,
        help="share of an update that is uploaded, its largest entries",
        maximum=1.0,
        above=0.0,
        search=OneOf(0.1, 0.3, 0.5, 1.0),
    )
    cffl_clip: float = key(
        default=0.01,
        help="most that an entry moves in a round; 0 is no limit",
        minimum=0.0,
        search=Between(0.001, 1.0),
    )
    cffl_alpha: float = key(
        default=5.0, help="large rewards the best clients more", maximum=100.0, above=0.0
    )
    cffl_threshold: float = key(
        default=1 / 3,
        help="part of the mean reputation below which clients train alone; 0: never",
        minimum=0.0,
        maximum=1.0,
    )
    cffl_reputation: Literal["paper", "code"] = key(
        default="paper", help="sinh before the mean with the old reputation, or after it"
    )
    validation: Validation = part(help="scores models on the server")

    excluded: set[int] = state(default_factory=set)
    _out: set[int] = state(default_factory=set)
    _answered: list[int] = state(default_factory=list)

    # ---------------------------------------------------------------------------- exchange

    @override
    def own_records(
        self, arrays: Arrays, client_ids: Iterable[int]
    ) -> dict[int, dict[str, Arrays]]:
        first = {ARRAYS: self.initial or arrays}
        return {
            k: dict(self.rewards.get(k, {})) if k in self.client_versions else first
            for k in client_ids
        }

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        size, dtype = self._vector(arrays)
        count = math.floor(self.upload_share * size + 1e-9)
        update: RecordSpec = {
            "kept": ((packed_size(size),), "uint8"),
            "values": ((count,), str(dtype)),
        }
        spec: dict[str, RecordSpec] = {UPDATE: update} | _with_statistics(
            spec_of(_statistics(arrays))
        )
        config = {**_names(arrays), "upload-count": count, "clip": self.cffl_clip}
        expected = replace(exchange.expected, arrays=spec)
        return replace(exchange, config=config, expected=expected)

    @override
    def evaluate_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().evaluate_exchange(arrays, client_ids)
        return replace(exchange, config=_names(arrays))

    # --------------------------------------------------------------------------- aggregate

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        super().begin_aggregation(arrays)
        self._answered = []

    @override
    def take(self, reply: ClientReply) -> None:
        super().take(reply)
        self._answered.append(reply.client_id)

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        size, _ = self._vector(arrays)
        uploads = {reply.client_id: _upload(reply, size) for reply in replies}
        inside = [reply for reply in replies if reply.client_id not in self.excluded]
        reputation, self._out = self._judged(arrays, inside, uploads)
        inside = [reply for reply in inside if reply.client_id not in self._out]
        rewards: dict[int, Records] = {k: {} for k in self._answered}
        shares = {reply.client_id: 0.0 for reply in replies}
        new = dict(arrays)
        if inside:
            everybody = float(examples_of(replies).sum())
            weights = examples_of(inside) / everybody
            total = total_update([uploads[r.client_id] for r in inside], weights)
            means = _mean_statistics(inside)
            own_reputation = np.array([reputation[r.client_id] for r in inside])
            counts = reward_counts(size, own_reputation, examples_of(inside))
            largest_client = float(examples_of(inside).max())
            for reply, count in zip(inside, counts, strict=True):
                k = reply.client_id
                own = reply.num_examples / largest_client
                step = top_k(total, count) - own * uploads[k]
                rewards[k] = {UPDATE: self._packed(arrays, step)} | _with_statistics(means)
                shares[k] = count / size
            new = moved(arrays, total, means)
        self.stage(reputation, rewards)
        known = {**dict.fromkeys(shares, 0.0), **reputation}
        self.record(replies, known, np.array([shares[r.client_id] for r in replies]))
        return new

    @override
    def counted(self, arrays: Arrays) -> None:
        super().counted(arrays)
        self.excluded |= self._out

    def _judged(
        self, arrays: Arrays, inside: Sequence[ClientReply], uploads: Mapping[int, Vector]
    ) -> tuple[dict[int, float], set[int]]:
        """Return the reputations of all reputable clients, and who is no longer one."""
        if not inside:
            return dict(self.reputation), set()
        client_ids = [reply.client_id for reply in inside]
        accuracies = [
            self.validation.accuracy(
                moved(arrays, uploads[reply.client_id], reply.arrays.get(STATISTICS, {}))
            )
            for reply in inside
        ]
        new = self.new_shares(client_ids, np.array(accuracies))
        for k, accuracy in zip(client_ids, accuracies, strict=True):
            self.annotate(k, validation_accuracy=accuracy)
        return reputable(merged(self.reputation, client_ids, new), self.cffl_threshold)

    def new_shares(self, client_ids: Sequence[int], accuracies: Vector) -> Vector:
        """Return the reputations of the round's clients, as shares of 1."""
        old = self.old_shares(client_ids)
        if self.cffl_reputation == "code":
            return code_reputation(old, accuracies, self.cffl_alpha)
        known = np.array([k in self.reputation for k in client_ids])
        # A new client starts with an average share.
        start = np.where(known, old, 1 / len(client_ids))
        return paper_reputation(shares_of(start), accuracies, self.cffl_alpha)

    # ----------------------------------------------------------------------------- vectors

    def _vector(self, arrays: Arrays) -> tuple[int, np.dtype[Any]]:
        """Return length and dtype of a model's parameters as one vector."""
        parameters = [arrays[name] for name in parameter_names(arrays)]
        return sum(a.size for a in parameters), np.result_type(*parameters)

    def _packed(self, arrays: Arrays, step: Vector) -> Arrays:
        _, dtype = self._vector(arrays)
        bits, values = pack(step, step != 0)
        return {"kept": bits, "values": values.astype(dtype)}

    # ------------------------------------------------------------------------------- state

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        arrays, scalars = super().state()
        return arrays, {**scalars, "excluded": sorted(self.excluded)}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        super().restore(arrays, scalars)
        excluded = scalars["excluded"]
        assert isinstance(excluded, list)
        self.excluded = {int(k) for k in excluded}


def _names(arrays: Arrays) -> dict[str, ConfigValue]:
    """Return which arrays make the vector, in its order."""
    return {"update-names": parameter_names(arrays)}


def _upload(reply: ClientReply, size: int) -> Vector:
    update = reply.arrays[UPDATE]
    return unpack(update["kept"], update["values"], size)


def _statistics(arrays: Arrays) -> Arrays:
    trained = set(parameter_names(arrays))
    return {name: array for name, array in arrays.items() if name not in trained}


def _with_statistics(content: dict[str, Content]) -> dict[str, dict[str, Content]]:
    """Return the record of statistics, where the model has any."""
    return {STATISTICS: content} if content else {}


def _mean_statistics(replies: Sequence[ClientReply]) -> Arrays:
    parts = (reply.arrays.get(STATISTICS, {}) for reply in replies)
    return weighted_mean(parts, examples_of(replies).tolist()) or {}
