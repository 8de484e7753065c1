"""FedEBA+ and Prac-FedEBA+: entropy weights, and alignment towards a fair direction.

Citation, equations and deviations: :mod:`fedsuite.strategies.fair.fedeba`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from fedsuite.messages.array_records import num_bytes
from fedsuite.method import (
    ARRAYS,
    GRADIENT,
    NUM_STEPS,
    PROBE,
    TRAIN,
    Arrays,
    Between,
    ClientNeeds,
    ClientReply,
    Exchange,
    Expected,
    NeededMetric,
    Release,
    ServerLogger,
    Unless,
    Value,
    Vector,
    given,
    key,
    spec_of,
    state,
    update_of,
)
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.strategies.fair.fedeba import FedEBA, client_updates
from fedsuite.strategies.fair.fedeba_equations import (
    fair_gradient,
    fairness_angle,
    model_alignment,
    practical_alignment,
)

logger = ServerLogger(__name__)


class AlignedFedEBA(FedEBA):
    """Base of FedEBA+ and Prac-FedEBA+: alpha, theta, and the choice of the branch."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "losses of all clients choose the branch, and its alignment is a second sum",
    )

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("aggregator", "liars", "mix"), "its step adds an alignment to the weighted mean"
    )

    alpha: float = key(
        default=0.1,
        help="share of the alignment in an update; 0 is FedEBA, whatever theta",
        minimum=0.0,
        maximum=1.0,
        search=Between(0.02, 0.9),
    )
    theta: float = key(
        default=0.0,
        help="angle in degrees above which losses are unfair; 0: unless equal, 90: never",
        minimum=0.0,
        maximum=90.0,
    )
    rescale_first_steps: bool = key(
        default=False,
        help="first steps times the number of local steps, as long as updates",
        needs=(Unless("theta", 0.0),),
    )

    def choose_branch(self, losses: Sequence[float]) -> bool:
        """Return whether these losses before training call for the gradient branch."""
        angle = fairness_angle(self.bounded(losses))
        self.round_metrics["angle"] = angle
        unfair = angle > self.theta
        self.round_metrics["branch"] = float(unfair)
        return unfair


class FedEBAPlus(AlignedFedEBA):
    """FedEBA+: a probe first, then aligned steps or a look at the first ones.

    Works with ``FedEBAPlusClient`` and with any Message-API app whose client answers
    ``query.probe`` and ``train`` as described there. Where theta is 0, losses and gradients
    come in one exchange, else gradients come where the round is unfair. Clients that do not
    answer the probe are not asked to train.

    The defaults are the best of those tried on rows held out of training, see
    ``simulations/fedeba/README.md``.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedEBAPlusClient", "answers query.probe with its loss and gradient"
    )
    NOT_LEGACY: ClassVar[str] = (
        f"a legacy NumPyClient cannot answer {PROBE}, which FedEBAPlus needs: use "
        "PracFedEBAPlus, or a Message-API client"
    )

    CORRECTS_GRADIENTS: ClassVar[bool] = True
    PAPER: ClassVar[Mapping[str, Value]] = {
        **FedEBA.PAPER,
        "alpha": 0.9,
        "fair-gradient-scale": "printed",
    }

    fair_gradient_scale: Literal["printed", "one-update"] = key(
        default="one-update",
        help="length: of a gradient, or of one local update",
        told=TRAIN,
    )

    _aligned: bool = state(default_factory=bool)
    _losses: dict[int, float] = state(default_factory=dict)
    _fair_weights: dict[int, float] = state(default_factory=dict)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        self._losses = {}
        # Before the probe, which may fail: else the row has the bytes of an earlier round.
        self._paper_bytes = num_bytes(arrays) * len(client_ids)
        probed = self._probe(arrays, client_ids, with_gradient=self.theta == 0)
        exchange = super().train_exchange(arrays, [reply.client_id for reply in probed])
        # Replies need no loss before training: the probe told it.
        expected = replace(exchange.expected, metrics=(self.loss_key,))
        exchange = replace(exchange, expected=expected)
        self._paper_bytes = num_bytes(arrays) * len(client_ids)
        self._aligned = self.choose_branch(self.losses_before(probed))
        if not self._aligned:
            self._weigh(probed)
            return self._plain_steps(exchange, arrays)
        self._paper_bytes *= 2
        if self.theta > 0:
            ids = [reply.client_id for reply in probed]
            probed = self._probe(arrays, ids, with_gradient=True)
        gradients = (reply.arrays[GRADIENT] for reply in probed)
        fair = fair_gradient(gradients, self._weigh(probed))
        shared = {ARRAYS: arrays, "fair-gradient": fair}
        config = {**self.told(TRAIN), "alpha": self.alpha}
        return replace(exchange, shared=shared, config=config)

    @override
    def combine(
        self, arrays: Arrays, replies: Sequence[ClientReply], weights: Vector
    ) -> Arrays:
        for reply, loss in zip(replies, self.losses_before(replies), strict=True):
            self.annotate(reply.client_id, loss_before=loss)
            if reply.client_id in self._fair_weights:
                fair_weight = self._fair_weights[reply.client_id]
                self.annotate(reply.client_id, fair_weight=fair_weight)
        if self._aligned:
            return super().combine(arrays, replies, weights)
        first_steps = (update_of(arrays, reply.arrays["first-step"]) for reply in replies)
        updates = client_updates(arrays, replies)
        return model_alignment(updates, first_steps, weights, self.alpha, _shares(replies))

    @override
    def losses_before(self, replies: Sequence[ClientReply]) -> list[float]:
        return [self._losses[reply.client_id] for reply in replies]

    def _probe(
        self, arrays: Arrays, client_ids: Sequence[int], *, with_gradient: bool
    ) -> list[ClientReply]:
        """Return the replies of clients with examples: losses, perhaps gradients."""
        probe = Exchange(
            PROBE,
            client_ids,
            {ARRAYS: arrays},
            config={"report-gradient": with_gradient},
            expected=Expected(
                {GRADIENT: spec_of(arrays)} if with_gradient else {},
                metrics=(self.loss_before_key,),
                advice=f"FedEBAPlus needs a client, such as FedEBAPlusClient, that answers "
                f"{PROBE} with num-examples, {self.loss_before_key} and, when told "
                f"report-gradient, the record {GRADIENT}: add @app.query('probe'), or use "
                "PracFedEBAPlus",
            ),
        )
        replies = [r for r in self.exchange(probe) if r.num_examples > 0]
        if not replies:
            reason = "no client of the round has examples"
            raise QuorumMissed(Kind.NO_EXAMPLES, 0, reason)
        self._losses.update((r.client_id, r.metrics[self.loss_before_key]) for r in replies)
        return replies

    def _weigh(self, probed: Sequence[ClientReply]) -> Vector:
        """Return the weights of the fair gradient, and note them for the report."""
        sizes = [reply.num_examples for reply in probed]
        weights = self.weights_of(self.losses_before(probed), sizes)
        ids = [reply.client_id for reply in probed]
        self._fair_weights = dict(zip(ids, weights.tolist(), strict=True))
        return weights

    def _plain_steps(self, exchange: Exchange, arrays: Arrays) -> Exchange:
        """Ask for plain local steps, and for the model after the first of them."""
        spec = spec_of(arrays)
        rescale = self.rescale_first_steps
        return replace(
            exchange,
            config={"report-first-step": True, "rescale-first-step": rescale},
            expected=replace(exchange.expected, arrays={ARRAYS: spec, "first-step": spec}),
        )


class PracFedEBAPlus(AlignedFedEBA):
    """Prac-FedEBA+: FedEBA+'s idea in the one exchange that FedAvg makes.

    A client's reply needs the model, its number of examples, its losses before and after
    training, and ``num-steps`` unless ``local_steps`` is given. Where a reply lacks the
    loss before training, the loss after stands for it in the whole round: the gradient
    branch then equals FedEBA, and the log says so once.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        metrics=(
            *FedEBA.NEEDS_OF_CLIENT.metrics,
            NeededMetric(NUM_STEPS, "local_steps", "the number of local steps", "it"),
        )
    )

    theta: float = 15.0
    local_steps: int | None = given(
        default=None, help="local steps of each client; None takes the replies' num-steps"
    )

    _warned: bool = state(default_factory=bool)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps is not None and self.local_steps < 1:
            raise ValueError(
                f"local_steps = {self.local_steps}: expected at least 1, or None"
            )

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        expected = exchange.expected
        if self.local_steps is None:
            expected = replace(expected, metrics=(*expected.metrics, NUM_STEPS))
        return replace(exchange, config={"report-loss-before": True}, expected=expected)

    @override
    def combine(
        self, arrays: Arrays, replies: Sequence[ClientReply], weights: Vector
    ) -> Arrays:
        losses = self.losses_before(replies)
        gradient_branch = self.choose_branch(losses)
        fair_weights = self.weights_of(losses, [reply.num_examples for reply in replies])
        for reply, loss, weight in zip(replies, losses, fair_weights, strict=True):
            self.annotate(reply.client_id, loss_before=loss, fair_weight=float(weight))
        updates = client_updates(arrays, replies)
        if gradient_branch:
            return practical_alignment(updates, weights, fair_weights, self.alpha)
        first_steps = (
            {name: update / self._steps_of(reply) for name, update in whole.items()}
            for reply, whole in zip(replies, client_updates(arrays, replies), strict=True)
        )
        return model_alignment(updates, first_steps, weights, self.alpha, _shares(replies))

    @override
    def losses_before(self, replies: Sequence[ClientReply]) -> list[float]:
        if all(self.loss_before_key in reply.metrics for reply in replies):
            return super().losses_before(replies)
        if not self._warned:
            self._warned = True
            logger.warning(
                "metric %r (loss_before_key) is missing: the loss after training stands "
                "for it, and PracFedEBAPlus's gradient branch equals FedEBA",
                self.loss_before_key,
            )
        return [reply.metrics[self.loss_key] for reply in replies]

    def _steps_of(self, reply: ClientReply) -> float:
        if self.rescale_first_steps:
            return 1.0
        return max(self.local_steps or reply.metrics[NUM_STEPS], 1.0)


def _shares(replies: Sequence[ClientReply]) -> Vector:
    """Return each client's share of the examples."""
    sizes = np.array([reply.num_examples for reply in replies], dtype=np.float64)
    shares: Vector = sizes / sizes.sum()
    return shares
