"""Client of FCCL+: FCCL's, and matches the similarities of samples."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import LOGITS, MEAN_OUTPUTS, OUTPUTS, SIMILARITIES, Request, Told
from fedsuite.clients.distillation.fccl import FCCLClient
from fedsuite.models.distillation import kl_divergence
from fedsuite.models.features import with_features


def similarities(features: Tensor) -> Tensor:
    """Return cosines of each sample's features with all others', ``[batch, batch - 1]``.

    Row b is without the sample b itself. Features that are all 0 have cosines 0.
    """
    unit = functional.normalize(features, dim=1)
    others = ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    return (unit @ unit.T)[others].reshape(len(unit), -1)


def non_target_loss(
    logits: Tensor,
    taught: Tensor,
    labels: Tensor,
    temperature: float = 3.0,
    *,
    renormalise: bool = False,
) -> Tensor:
    """Return T^2 sum_{k != label} p_k log(p_k / q_k), the mean over a batch.

    q and p are the softmaxes of ``logits`` and of the teacher's ``taught`` at the
    temperature T > 0; ``renormalise`` makes both sum to 1 without the label's entry. No
    gradient flows into the teacher.
    """
    others = functional.one_hot(labels, logits.shape[1]) == 0
    rows = len(logits)
    log_q = functional.log_softmax(logits / temperature, dim=1)[others].reshape(rows, -1)
    scaled = taught.detach() / temperature
    log_p = functional.log_softmax(scaled, dim=1)[others].reshape(rows, -1)
    if renormalise:
        log_q, log_p = log_q.log_softmax(dim=1), log_p.log_softmax(dim=1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum() / rows


class FCCLPlusClient(FCCLClient):
    """Sends similarities beside its logits."""

    SENDS: ClassVar[frozenset[str]] = FCCLClient.SENDS | {f"{OUTPUTS}/{SIMILARITIES}"}
    distillation_temperature = Told(float)
    fccl_plus_similarity_weight = Told(float)
    fccl_plus_similarity_temperature = Told(float)
    fccl_plus_renormalise = Told(bool)

    @override
    def teaching(self, logits: Tensor, taught: Tensor, labels: Tensor) -> Tensor:
        temperature, renormalise = self.distillation_temperature, self.fccl_plus_renormalise
        return non_target_loss(logits, taught, labels, temperature, renormalise=renormalise)

    @override
    def public_outputs(self, features: Tensor) -> dict[str, Tensor]:
        inner, logits = with_features(self.model, features)
        return {LOGITS: logits, SIMILARITIES: similarities(inner)}

    @override
    def transfer_loss(
        self, request: Request, step: int, outputs: Mapping[str, Tensor]
    ) -> Tensor | None:
        loss = super().transfer_loss(request, step, outputs)
        weight = self.fccl_plus_similarity_weight
        if loss is None or weight == 0:
            return loss
        mean = self.received(request, MEAN_OUTPUTS, SIMILARITIES)
        temperature = self.fccl_plus_similarity_temperature
        return loss + weight * kl_divergence(outputs[SIMILARITIES], mean, temperature)
