"""Client of pFedCK: an interactive and a personal model that teach each other."""

import copy

from torch import Tensor, nn
from torch.nn import functional

from fedsuite.clients.personal.own_model import PersonalModelClient
from fedsuite.messages.records import Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.distillation import distillation_loss
from fedsuite.models.features import with_features
from fedsuite.training.loop import make_optimizer, take_step
from fedsuite.training.told import Told


class PFedCKClient(PersonalModelClient):
    """Trains the received model and its own on the same mini-batches."""

    pfedck_logit_weight = Told(float)
    pfedck_feature_weight = Told(float)
    pfedck_temperature = Told(float)
    _own: nn.Module | None = None

    def on_train(self, request: Request) -> Reply:
        """Train both; send the interactive model, keep the personal one."""
        own = copy.deepcopy(self.model).train()
        load_arrays(own, {**self._initial, **(self.load_state(request) or {})})
        self._own = own
        self._optimizer = make_optimizer(own, self.training, request.server_round)
        try:
            reply = super().on_train(request)
        finally:
            self._own = None
        stored = self.save_state(request, model_arrays(own))
        return Reply(reply.arrays, {**reply.metrics, **stored})

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """Return the interactive model's loss; the gradient is the personal one's too."""
        if self._own is None:
            return super().loss(model, features, labels)
        here, there = with_features(model, features), with_features(self._own, features)
        loss = self._taught(here, there, labels)
        own = self._taught(there, here, labels)
        return loss + (own - own.detach())

    def before_step(self, model: nn.Module) -> None:
        """Step the personal model."""
        if self._own is not None:
            take_step(self._optimizer, self.training.clip_gradient_norm)

    def _taught(
        self, student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], labels: Tensor
    ) -> Tensor:
        """Return the labels' loss plus the distance to features and logits of a teacher."""
        (found, logits), (target, target_logits) = student, teacher
        loss = self.loss_of_logits(logits, labels)
        if self.pfedck_logit_weight > 0:
            # Of sequences each position is a row.
            loss = loss + self.pfedck_logit_weight * distillation_loss(
                logits.flatten(0, -2),
                target_logits.flatten(0, -2),
                self.pfedck_temperature,
            )
        if self.pfedck_feature_weight > 0:
            distance = functional.mse_loss(found, target.detach())
            loss = loss + self.pfedck_feature_weight * distance
        return loss
