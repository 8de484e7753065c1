"""Rank-Core-Fed, our reading: every few rounds the clients elect the global model.

B. Ray Chaudhury, A. Murhekar, Z. Yuan, B. Li, R. Mehta, A. D. Procaccia, "Fair Federated
Learning via the Proportional Veto Core", ICML 2024, PMLR 235:42245-42257.

From the paper's abstract: a client judges a model by its rank, and the model that is
trained lies in the proportional veto core. A coalition T of n clients blocks a of m models
if all of T prefer each model of a set B to a, and |T| / n > 1 - |B| / m. The core is what
nobody blocks.

Our reading, since the algorithm could not be read: FedAvg, whose new model is elected in
every q-th round from a pool. The pool holds the mean by examples, the model of the round
before, the plain mean, the mean of the half with the higher losses, and the clients'
models. The clients rank the pool by their loss on validation rows, or on training rows
where they keep none. The server lets them veto by consumption: each model has mass 1, all
clients eat at one speed the model alive that they rank lowest, and the last one wins.

Known to hold: the winner is in the core. All mass is eaten at time m / n. If T blocked the
winner with B, then T ate outside B up to that time, which is |T| m / n > m - |B|: more than
there is. A pool of one model is FedAvg, and so is a ``rank-every`` beyond the last round.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    ARRAYS,
    RANK,
    RANKING,
    Arrays,
    BadReply,
    ClientNeeds,
    ClientReply,
    Exchange,
    Expected,
    LossStrategy,
    OneOf,
    Value,
    examples_of,
    key,
    model_record,
    weighted_mean,
)
from fedsuite.rounds.kinds import Kind


def elected(rankings: Sequence[Sequence[int]]) -> int:
    """Return the winner of veto by consumption; of those that die last, the first.

    ``rankings`` has one permutation of the models a client, its favourite first.
    """
    masses = dict.fromkeys(sorted(rankings[0]), Fraction(1))
    while len(masses) > 1:
        eaters = Counter(
            next(model for model in reversed(ranking) if model in masses)
            for ranking in rankings
        )
        time = min(masses[model] / eaters[model] for model in eaters)
        left = {model: mass - time * eaters[model] for model, mass in masses.items()}
        masses = {model: mass for model, mass in left.items() if mass} or {min(left): time}
    return next(iter(masses))


class RankCoreFed(LossStrategy):
    """FedAvg whose clients elect the model of every few rounds, by their rankings."""

    READING: ClassVar[str] = "our reading of the abstract"
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "RankCoreFedClient", "answers query.rank with its ranking of the models"
    )
    NOT_LEGACY: ClassVar[str] = f"a legacy NumPyClient cannot answer {RANK}"
    DEFAULTS: ClassVar[Mapping[str, Value]] = {"client-validation-fraction": 0.2}

    rank_every: int = key(
        default=5,
        help="rounds from election to election; more than all is FedAvg",
        minimum=1,
        search=OneOf(1, 2, 5, 10),
    )
    pool_size: int = key(
        default=8, help="models to elect from; 1 is FedAvg's alone", minimum=1
    )

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        sizes = examples_of(replies)
        mean = self.average(replies, sizes)
        if mean is None or self.server_round % self.rank_every or self.pool_size == 1:
            return mean
        losses = self.losses_of(replies)
        worse = np.argsort(-losses, kind="stable")[: (len(replies) + 1) // 2]
        models = [reply.arrays[ARRAYS] for reply in replies]
        plain = weighted_mean(models, [1.0] * len(models))
        fair = weighted_mean([models[k] for k in worse], sizes[worse].tolist())
        pool = [a for a in (mean, arrays, plain, fair, *models) if a is not None]
        return self._elect(pool[: self.pool_size], [r.client_id for r in replies]) or mean

    def _elect(self, pool: Sequence[Arrays], client_ids: Sequence[int]) -> Arrays | None:
        """Have the clients rank the pool; return the winner, or None if nobody does."""

        def check(reply: ClientReply) -> None:
            if sorted(reply.arrays[RANKING][RANKING].tolist()) != list(range(len(pool))):
                reason = f"{RANKING} is no permutation of 0 to {len(pool) - 1}"
                raise BadReply(Kind.WRONG_ARRAYS, reason)

        ballots = Exchange(
            RANK,
            client_ids,
            {model_record(number): model for number, model in enumerate(pool)},
            expected=Expected(
                {RANKING: {RANKING: ((len(pool),), "int64")}},
                advice=self.NEEDS_OF_CLIENT.advice,
                check=check,
            ),
        )
        votes = [
            reply.arrays[RANKING][RANKING].tolist() for reply in self.exchange(ballots)
        ]
        if not votes:
            return None
        winner = elected(votes)
        self.round_metrics["elected_model"] = float(winner)
        return pool[winner]
