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
the mean over all is sent, and the client takes itself out of it (key
``distillation-target``). A single client has nobody to imitate, and only trains. References
are in training mode, as the model is, so that normalisation layers make no difference
between the two. Their outputs on the round's public batches are computed at the end of the
local phase, in place of keeping a second model.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Unpack, get_args

from fedsuite.core.keys import Key, Unless, Value, With
from fedsuite.messages.records import MEAN_OUTPUTS, Arrays
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.strategies.distillation.public_exchange import (
    DEFAULTS,
    PUBLIC_BATCH_SIZE,
    RESET_OPTIMIZER,
    TRANSFER_STEPS,
    Feedback,
    OutputOptions,
    PublicExchange,
    mean_outputs,
    output_divergence,
)

Target = Literal["others", "all"]
Match = Literal["kl", "l1", "mse"]
LessForgetting = Literal["none", "local", "transfer", "both"]

TEMPERATURE = Key(
    "distillation-temperature",
    1.0,
    "temperature at which predictions are compared",
    above=0.0,
)
_TEMPERATURE = replace(
    TEMPERATURE, needs=(With("distillation-loss", "kl"), Unless("less-forgetting", "none"))
)
TARGET = Key(
    "distillation-target",
    "others",
    "whose mean logits a client imitates: the others', or all clients', its own included",
    choices=get_args(Target),
)
MATCH = Key(
    "distillation-loss",
    "kl",
    "how logits are matched: divergence of their softmaxes, or distance",
    choices=get_args(Match),
)
LESS_FORGETTING = Key(
    "less-forgetting",
    "none",
    "phases that stay near the model they started from, which their first step does not "
    "leave",
    choices=get_args(LessForgetting),
    needs=(Unless("local-steps", 1), Unless("transfer-steps", 1)),
    value_needs=(("local", Unless("local-steps", 1)),),
)
LESS_FORGETTING_FROM = Key(
    "less-forgetting-from",
    1,
    "first round with less-forgetting; in round 1 the local phase stays near the random "
    "initial model",
    minimum=1,
    needs=(Unless("less-forgetting", "none"),),
)


class DistillationOptions(OutputOptions, total=False):
    """Keywords of :class:`FedMD` but those whose defaults differ from method to method."""

    distillation_temperature: float
    distillation_target: Target
    distillation_loss: Match
    less_forgetting_from: int


class FedMD(PublicExchange):
    """Mean logits on public data, and nothing else, go between server and clients.

    Parameters
    ----------
    transfer_steps
        Exchanges after each local phase.
    distillation_temperature
        E of the divergences; 1 compares the predictions themselves.
    distillation_target
        ``others`` leaves the client out of the mean that it imitates, ``all`` does not.
    distillation_loss
        ``kl``, or ``l1`` and ``mse`` between logits.
    less_forgetting
        ``none``, ``local``, ``transfer`` or ``both``: phases with a less-forgetting term.
    less_forgetting_from
        First round that has it.
    options
        Keywords of
        :class:`~fedsuite.strategies.distillation.public_exchange.PublicExchange`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedMDClient", "answers with its outputs on public data"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        replace(TRANSFER_STEPS, default=1),
        PUBLIC_BATCH_SIZE,
        RESET_OPTIMIZER,
        _TEMPERATURE,
        TARGET,
        MATCH,
        LESS_FORGETTING,
        LESS_FORGETTING_FROM,
    )
    DEFAULTS: ClassVar[Mapping[str, Value]] = {**DEFAULTS, "local-steps": 1}

    def __init__(
        self,
        *,
        transfer_steps: int = 1,
        distillation_temperature: float = 1.0,
        distillation_target: Target = "others",
        distillation_loss: Match = "kl",
        less_forgetting: LessForgetting = "none",
        less_forgetting_from: int = 1,
        **options: Unpack[OutputOptions],
    ) -> None:
        if not distillation_temperature > 0:
            raise ValueError(
                f"distillation_temperature = {distillation_temperature}: expected above 0"
            )
        if less_forgetting == "transfer" and transfer_steps == 1:
            raise ValueError(
                "less_forgetting = 'transfer' has no effect with transfer_steps = 1, which "
                "starts from the model to stay near to: take more, or 'none'"
            )
        super().__init__(transfer_steps=transfer_steps, **options)
        self.settings |= {
            "distillation-temperature": distillation_temperature,
            "distillation-target": distillation_target,
            "distillation-loss": distillation_loss,
            "less-forgetting": less_forgetting,
            "less-forgetting-from": less_forgetting_from,
        }

    def feedback(self, outputs: Mapping[int, Arrays], step: int) -> Feedback:
        """Return the mean of the logits."""
        self.note(output_divergence=output_divergence(outputs))
        return Feedback({MEAN_OUTPUTS: mean_outputs(outputs)})


class FedMDLF(FedMD):
    """FedMD with both less-forgetting terms, and five steps a phase."""

    KEYS: ClassVar[tuple[Key, ...]] = (
        *PublicExchange.KEYS,
        _TEMPERATURE,
        TARGET,
        MATCH,
        replace(LESS_FORGETTING, default="both"),
        LESS_FORGETTING_FROM,
    )
    DEFAULTS: ClassVar[Mapping[str, Value]] = DEFAULTS

    def __init__(
        self,
        *,
        transfer_steps: int = 5,
        less_forgetting: LessForgetting = "both",
        **options: Unpack[DistillationOptions],
    ) -> None:
        super().__init__(
            transfer_steps=transfer_steps, less_forgetting=less_forgetting, **options
        )
