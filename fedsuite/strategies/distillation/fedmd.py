"""FedMD and FedMD-LF: clients imitate the mean of their outputs on public data.

D. Li, J. Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS
workshop 2019, arXiv:1910.03581; in the form in which P. Han, X. Shi, J. Huang, "FedAL:
Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning",
arXiv:2311.16584, compares with it, and whose less-forgetting terms FedMD-LF adds.

Equations used (numbers of FedAL's paper). With f_n client n's logits, F = mean_n f_n on a
public batch, p = softmax(. / E) and KL(a, b) = sum a log(a / b), target first:

- local phase: cross-entropy + KL(p of the model at the round's start, p_n) (13, 17);
- transfer: KL(softmax((N F - f_n) / (N - 1) / E), p_n) (4 to 6) + KL(p of the model that
  the local phase left, p_n) (14).

FedMD has neither of the less-forgetting terms, FedMD-LF both. A term is 0, and so is its
gradient, at the first step of its phase, where model and reference are one: it is left out
there, so that FedMD-LF with one step a phase is FedMD, bit for bit.

Deviations. FedMD's own paper first trains on public labels, aligns before it trains, and
matches logits in L1 with the mean over all clients: ``distillation-loss`` and
``distillation-target`` have the latter two, the others are left out, as in FedAL's
comparison. Equations 5 and 6 leave the client itself out of the mean, Algorithm 1 does not:
the mean over all is sent, and the client takes itself out of it (``distillation-target``).
A single client has nobody to imitate, and only trains. References are in training mode, as
the model is. Their outputs on the round's public batches are computed at the end of the
local phase, so that no second model is kept.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from typing_extensions import override

from fedsuite.method import (
    MEAN_OUTPUTS,
    TRAIN,
    Arrays,
    ClientNeeds,
    OneOf,
    Rule,
    Unless,
    Value,
    With,
    key,
)
from fedsuite.strategies.distillation.public_exchange import (
    DEFAULTS,
    Feedback,
    PublicExchange,
    mean_outputs,
    output_divergence,
)

Target = Literal["others", "all"]
Match = Literal["kl", "l1", "mse"]
LessForgetting = Literal["none", "local", "transfer", "both"]


class FedMD(PublicExchange):
    """Mean logits on public data, and nothing else, go between server and clients."""

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedMDClient", "answers with its outputs on public data"
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = {**DEFAULTS, "local-steps": 1}
    RULES: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            ("less-forgetting", steps),
            (With("less-forgetting", phase), With(steps, 1)),
            "a phase of one step starts from the model that it would stay near to",
            f"set another {{{steps}}} too, or another {{less-forgetting}}",
        )
        for phase, steps in (("local", "local-steps"), ("transfer", "transfer-steps"))
    )

    distillation_temperature: float = key(
        default=1.0,
        help="softmax temperature of distillation",
        above=0.0,
        needs=(With("distillation-loss", "kl"), Unless("less-forgetting", "none")),
        told=TRAIN,
        search=OneOf(1.0, 2.0, 4.0),
    )
    distillation_target: Target = key(
        default="others", help="mean of the other clients, or of all clients", told=TRAIN
    )
    distillation_loss: Match = key(
        default="kl", help="divergence of softmaxes, or distance of logits", told=TRAIN
    )
    less_forgetting: LessForgetting = key(
        default="none",
        help="phases that stay near the model they started from",
        needs=(Unless("local-steps", 1), Unless("transfer-steps", 1)),
        told=TRAIN,
    )
    less_forgetting_from: int = key(
        default=1,
        help="first round with less-forgetting",
        minimum=1,
        needs=(Unless("less-forgetting", "none"),),
        told=TRAIN,
    )
    transfer_steps: int = 1

    @override
    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        self.note(output_divergence=output_divergence(outputs))
        return Feedback({MEAN_OUTPUTS: mean_outputs(outputs)})


class FedMDLF(FedMD):
    """FedMD with both less-forgetting terms, and five steps a phase."""

    DEFAULTS: ClassVar[Mapping[str, Value]] = DEFAULTS

    less_forgetting: LessForgetting = "both"
    transfer_steps: int = 5
