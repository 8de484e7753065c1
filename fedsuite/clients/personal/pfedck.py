"""Client of pFedCK: an interactive and a personal model that teach each other."""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import Told
from fedsuite.clients.personal.two_models import TwoModelsClient
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.models.distillation import distillation_loss
from fedsuite.models.features import with_features


class PFedCKClient(TwoModelsClient):
    """Trains the received model and its own, which imitate each other."""

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    pfedck_logit_weight = Told(float)
    pfedck_feature_weight = Told(float)
    pfedck_temperature = Told(float)

    @override
    def losses(
        self, received: nn.Module, own: nn.Module, features: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        pair = with_features(received, features), with_features(own, features)
        return self._taught(*pair, labels), self._taught(*pair[::-1], labels)

    def _taught(
        self, student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], labels: Tensor
    ) -> Tensor:
        """Return the labels' loss plus the distance to features and logits of a teacher."""
        (embeddings, logits), (target, target_logits) = student, teacher
        loss = self.loss_of_logits(logits, labels)
        if self.pfedck_logit_weight > 0:
            # Of sequences each position is a row.
            loss = loss + self.pfedck_logit_weight * distillation_loss(
                logits.flatten(0, -2),
                target_logits.flatten(0, -2),
                self.pfedck_temperature,
            )
        if self.pfedck_feature_weight > 0:
            distance = functional.mse_loss(embeddings, target.detach())
            loss = loss + self.pfedck_feature_weight * distance
        return loss
