"""FedEBA: fair aggregation by entropy; FedEBA+'s paper, equations and deviations.

FedEBA+ and Prac-FedEBA+ stand in :mod:`fedsuite.strategies.fair.fedeba_plus`.

L. Wang, Z. Wang, Y. Shi, S. P. Karimireddy, X. Tang, "Entropy-driven Fair and Effective
Federated Learning", arXiv:2301.12407. No official code is known.

Equations used, for the sampled clients i with losses F_i(x_t) before and F_i(x_{t,K}) after
local training, each on the client's own model and training data:

- weights p = softmax(F(x_{t,K}) / tau), Eq. (4); p~ the same of F(x_t);
- angle between (F_i(x_t))_i and the all-ones vector; above theta the round is unfair;
- unfair, FedEBA+: fair gradient g~ = sum_i p~_i grad F_i(x_t), Eq. (10); local steps along
  (1 - alpha) g + alpha g~, Eq. (11); Delta = sum_i p_i Delta_i;
- fair, FedEBA+: plain local steps; Delta = (1 - alpha) sum_i p_i Delta_i + alpha mean_i
  delta_i, with delta_i the update of the first step, Eqs. (8) and (9);
- unfair, Prac-FedEBA+: Delta = sum_i [(1 - alpha) p_i + alpha p~_i] Delta_i, Algorithm 3;
  fair: as above with delta_i = Delta_i / K_i;
- x_{t+1} = x_t + eta Delta, Algorithm 1 line 25.

Deviations and readings, each where the paper is silent or contradicts itself:

- Losses after training weight the aggregate, as in Algorithms 1 and 3 (Eq. (22) has those
  before); ``aggregation_losses`` chooses.
- Updates are model differences and the server adds them (Algorithm 1; section 4.3 has the
  other sign). Alpha and tau are independent (Eq. (7) ties them through beta, but does not
  follow from Eq. (6)).
- Losses and gradients are of the full training set (the algorithms omit the mini-batch
  exactly there), in evaluation mode.
- The angle is an arc tangent, exactly 0 for equal losses; all-zero losses are fair.
- The mean of the first steps is weighted by examples, Eq. (9)'s form for unequal sizes.
- Prac-FedEBA+ divides by K the whole update; line 18 prints x_{t,K-1}, which would be one
  more upload. Theta 15 is the paper's; it names no alpha. FedEBA+'s 0.9 at temperature 0.1
  comes close to the drifted update of one client: on synthetic data it was worse than
  FedAvg, and 0.1 better than FedEBA. The default is 0.1.
- ``effective_clients`` is another form of the constraint of Eq. (3): 1 / sum_i p_i^2, the
  clients that the weights amount to. Multiplying all losses changes nothing. It is 0.95 of
  the clients by default; the paper has temperature 0.1.
- ``fair_gradient_scale`` "one-update", the default, reads g~ of Eq. (10) as what sections
  4.3 and 4.4 call one local update: the local learning rate times the gradient. As printed
  it is longer by one over that rate, and FedEBA+ does not learn with the paper's alpha of
  0.9. Alpha is 0.1 by default.
- These defaults won on rows held out of training, see ``simulations/fedeba/README.md``.
  ``preset = "paper"``, or ``of_paper()``, brings the paper's values.
- Temperature schedules count the current round; Eq. (188) prints the number of rounds. The
  paper has no value of their decay.
- Clients without examples, or that did not answer the probe, have no weight; the others'
  weights are renormalised. Negative losses count as 0.
- Running statistics of batch normalisation are averaged with the parameters' weights.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from fedsuite.messages.array_records import num_bytes
from fedsuite.method import (
    ARRAYS,
    LOSS_AFTER,
    LOSS_BEFORE,
    SHARES_OF_PAPERS,
    SUM,
    TRAIN,
    Arrays,
    ClientNeeds,
    ClientReply,
    Exchange,
    NeededMetric,
    OneOf,
    Release,
    ServerLogger,
    Summed,
    Unless,
    Value,
    Vector,
    With,
    apply_update,
    given,
    key,
    norm,
    share_ratio_key,
    state,
    step_towards,
    update_of,
    weighted_sum,
    with_statistics,
)
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.fair.fedeba_equations import (
    Schedule,
    effective_clients,
    entropy_weights,
    temperature_at,
    temperature_for_clients,
)

FLOWERS_LOSS = "train_loss"
"""Name of the loss of local training in Flower's examples."""

logger = ServerLogger(__name__)


class FedEBA(FedAvg):
    """Entropy-based aggregation alone: FedEBA+ with alpha 0.

    A client's reply needs the model, its number of examples and its loss after training.
    Where loss-after is missing, train_loss stands for it, and the log says so once. All
    replies of a round are held in memory.
    """

    PRIVACY: ClassVar[Release] = Release(
        "weighted",
        "a weight is exp(F_i / tau) of one client's loss, up to a common factor",
        needs={"effective-clients": 0.0},
    )

    SUMS: ClassVar[Summed | None] = Summed(
        "clients",
        examples_if="size-prior",
        form="softmax",
        rate="temperature",
        loss=LOSS_AFTER,
        most_loss="loss-clip",
        needs={
            "effective-clients": (0.0, "its weights come of all clients' losses together"),
            "aggregation-losses": ("after", "a client weighs itself by the one after"),
        },
    )

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        metrics=(NeededMetric(LOSS_AFTER, "loss_key", "the client's loss after training"),)
    )
    DEFAULTS: ClassVar[Mapping[str, Value]] = {
        "local-steps": 10,
        "batch-size": 50,
        "learning-rate": 0.1,
        "learning-rate-decay": 0.999,
    }

    PAPER: ClassVar[Mapping[str, Value]] = {
        **SHARES_OF_PAPERS,
        "effective-clients": 0.0,
    }

    max_share_ratio: float | str = share_ratio_key()

    temperature: float = key(
        default=0.1,
        help="unit of losses in the weights; large is the plain mean, near 0 the worst",
        above=0.0,
        needs=(With("effective-clients", 0.0),),
    )
    effective_clients: float = key(
        default=0.95,
        help="share of the clients that 1 / sum p^2 is; 1 is the plain mean, 0 is off",
        minimum=0.0,
        maximum=1.0,
        search=OneOf(0.0, 0.6, 0.7, 0.8, 0.9, 0.95),
    )
    temperature_schedule: Schedule = key(
        default="constant", help="how it falls", needs=(With("effective-clients", 0.0),)
    )
    temperature_decay: float = key(
        default=0.01,
        help="rate of the schedule per round; 0 is constant",
        minimum=0.0,
        needs=(Unless("temperature-schedule", "constant"),),
    )
    aggregation_losses: Literal["after", "before"] = key(
        default="after", help="losses in the weights: after training, or before it"
    )
    size_prior: bool = key(default=False, help="weigh by numbers of examples too")
    loss_clip: float = key(
        default=0.0, help="largest loss in the weights; 0 is no limit", minimum=0.0
    )
    loss_key: str = given(
        default=LOSS_AFTER, help="loss after training; train_loss stands in for loss-after"
    )
    loss_before_key: str = given(
        default=LOSS_BEFORE, help="metric of the loss before training"
    )

    _held: list[ClientReply] = state(default_factory=list)
    _paper_bytes: int = state(default_factory=int)
    _told: bool = state(default_factory=bool)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        self._paper_bytes = num_bytes(arrays) * len(client_ids)
        exchange = super().train_exchange(arrays, client_ids)
        before = self.aggregation_losses == "before"
        expected = replace(
            exchange.expected,
            metrics=(self.loss_key, self.loss_before_key) if before else (self.loss_key,),
            stand_ins={LOSS_AFTER: FLOWERS_LOSS} if self.loss_key == LOSS_AFTER else {},
        )
        return replace(exchange, config={"report-loss-before": before}, expected=expected)

    @override
    def begin_aggregation(self, arrays: Arrays) -> None:
        self._held = []

    @override
    def take(self, reply: ClientReply) -> None:
        if reply.num_examples > 0:
            self._held.append(reply)

    @override
    def aggregate(self, arrays: Arrays) -> Arrays | None:
        used, self._held = self._held, []
        if not used:
            return None
        if used[0].client_id == SUM:
            return step_towards(arrays, used[0].arrays[ARRAYS], self.server_learning_rate)
        self._tell_stand_ins(used)
        after = [reply.metrics[self.loss_key] for reply in used]
        before = self.aggregation_losses == "before"
        losses = self.losses_before(used) if before else after
        weights = self.weights_of(losses, [reply.num_examples for reply in used])
        for reply, weight, loss in zip(used, weights, after, strict=True):
            self.annotate(reply.client_id, weight=float(weight), loss_after=loss)
        self.round_metrics["effective_clients"] = effective_clients(weights)
        update = self.combine(arrays, used, weights)
        floats = [name for name, array in arrays.items() if array.dtype.kind == "f"]
        self.round_metrics["update_norm"] = norm(*(update[name] for name in floats))
        moved = apply_update(arrays, update, self.server_learning_rate)
        if self.averaging.is_robust:
            return moved
        models = (reply.arrays[ARRAYS] for reply in used)
        return with_statistics(moved, models, weights.tolist())

    @override
    def log_weights(self, replies: Sequence[ClientReply]) -> Vector:
        before = self.aggregation_losses == "before"
        after = [reply.metrics[self.loss_key] for reply in replies]
        losses = self.bounded(self.losses_before(replies) if before else after)
        with np.errstate(over="ignore"):
            exponents: Vector = losses / self._temperature_now()
        sizes = [reply.num_examples for reply in replies]
        return exponents + (np.log(sizes) if self.size_prior else 0.0)

    def _temperature_now(self) -> float:
        """Return the temperature of the round by its schedule."""
        return temperature_at(
            self.server_round,
            self.temperature,
            self.temperature_decay,
            self.temperature_schedule,
        )

    def combine(
        self, arrays: Arrays, replies: Sequence[ClientReply], weights: Vector
    ) -> Arrays:
        """Return the round's update: sum_i p_i Delta_i, or what a robust rule makes."""
        if self.averaging.is_robust:
            return update_of(arrays, self.average(replies, weights) or arrays)
        return weighted_sum(client_updates(arrays, replies), weights)

    @override
    def claims(self) -> Collection[str]:
        return (self.loss_key, self.loss_before_key)

    @override
    def neutral_weight_of(self, reply: ClientReply) -> float:
        return reply.num_examples if self.size_prior else 1.0

    def losses_before(self, replies: Sequence[ClientReply]) -> list[float]:
        """Return the clients' losses before training."""
        return [reply.metrics[self.loss_before_key] for reply in replies]

    def weights_of(self, losses: Sequence[float], sizes: Sequence[float]) -> Vector:
        """Return the entropy weights of clients with these losses and examples."""
        counted = self.bounded(losses)
        prior = sizes if self.size_prior else None
        temperature = (
            temperature_for_clients(counted, self.effective_clients * len(counted), prior)
            if self.effective_clients
            else self._temperature_now()
        )
        self.round_metrics["temperature"] = temperature
        weights = entropy_weights(counted, temperature, prior)
        neutral = np.ones(len(counted)) if prior is None else np.asarray(prior, np.float64)
        return self.averaging.shares(weights, neutral)

    def bounded(self, losses: Sequence[float]) -> Vector:
        """Return losses as they count: >= 0 and within the limits."""
        return np.clip(np.asarray(losses, np.float64), 0.0, self.loss_clip or np.inf)

    def _tell_stand_ins(self, replies: Sequence[ClientReply]) -> None:
        """Say once that train_loss stands for the loss after training."""
        if self._told or not any(reply.stand_ins for reply in replies):
            return
        self._told = True
        logger.warning(
            "metric %r stands for %r, the loss of the trained model over all training data "
            "of a client, which the paper's weights are made of: give loss_key=%r if yours "
            "is that",
            FLOWERS_LOSS,
            LOSS_AFTER,
            FLOWERS_LOSS,
        )

    def finish_round(self) -> None:
        """Report the bytes of training: as the paper counts them, and as sent.

        The paper counts one model per client, and one more in FedEBA+'s gradient branch.
        """
        super().finish_round()
        if TRAIN in self.reports:
            report = self.reports[TRAIN]
            self.round_metrics["bytes_paper"] = self._paper_bytes
            self.round_metrics["bytes_train"] = report.bytes_down + report.bytes_up


def client_updates(arrays: Arrays, replies: Sequence[ClientReply]) -> Iterator[Arrays]:
    """Yield each client's update, in client order, one at a time."""
    return (update_of(arrays, reply.arrays[ARRAYS]) for reply in replies)
