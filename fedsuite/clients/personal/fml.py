"""Client of FML: the received model and its own imitate each other's predictions."""

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import Told
from fedsuite.clients.personal.two_models import TwoModelsClient
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.models.distillation import kl_divergence


class FMLClient(TwoModelsClient):
    """Trains each model on the labels and on the other one's predictions."""

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    fml_alpha = Told(float)
    fml_beta = Told(float)

    @override
    def losses(
        self, received: nn.Module, own: nn.Module, features: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        shared, personal = received(features), own(features)
        return (
            self._taught(shared, personal, labels, self.fml_beta),
            self._taught(personal, shared, labels, self.fml_alpha),
        )

    def _taught(
        self, logits: Tensor, teacher: Tensor, labels: Tensor, share: float
    ) -> Tensor:
        """Return a mixture of the labels' loss and the divergence from a teacher."""
        loss = self.loss_of_logits(logits, labels)
        if share == 1.0:
            return loss
        # Of sequences each position is a row.
        divergence = kl_divergence(logits.flatten(0, -2), teacher.flatten(0, -2))
        return share * loss + (1.0 - share) * divergence
