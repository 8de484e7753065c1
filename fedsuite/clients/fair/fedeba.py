"""Clients of FedEBA, FedEBA+ and Prac-FedEBA+.

Reported losses and gradients are those of the hook ``loss`` over the client's training set,
in evaluation mode. Measuring changes no parameter, buffer, order of mini-batches or other
random stream.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    GRADIENT,
    LOSS_AFTER,
    LOSS_BEFORE,
    NUM_EXAMPLES,
    NUM_STEPS,
    PROBE,
    Arrays,
    FederatedClient,
    Reply,
    Request,
    RunError,
    Told,
    load_arrays,
    probe_model,
)


class FedEBAClient(FederatedClient):
    """Trains as FedAvg's client and reports the loss after it as ``loss-after``.

    If the message says ``report-loss-before``, it reports the received model's loss too, as
    ``loss-before``. Client of FedEBA and of Prac-FedEBA+.
    """

    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {LOSS_BEFORE, LOSS_AFTER}

    @override
    def on_train(self, request: Request) -> Reply:
        before = {}
        if request.config.get("report-loss-before"):
            load_arrays(self.model, request.arrays[ARRAYS])
            before[LOSS_BEFORE] = self.full_loss(request)
        reply = super().on_train(request)
        after = {LOSS_AFTER: self.full_loss(request)}
        return Reply(reply.arrays, {**reply.metrics, **before, **after})


class FedEBAPlusClient(FedEBAClient):
    """Answers the probe, and trains along the fair gradient where one is sent.

    - ``query.probe``: the received model's loss and, with ``report-gradient``, gradient.
    - A training message with the record ``fair-gradient`` and the number ``alpha``: aligned
      steps. With ``fair-gradient-scale`` = ``one-update`` the client's learning rate of the
      round multiplies the fair gradient.
    - One with ``report-first-step``: also the record ``first-step``, the parameters after
      the first step, and the buffers as they are at the end.
    """

    SENDS: ClassVar[frozenset[str]] = FedEBAClient.SENDS | {GRADIENT, "first-step"}
    fair_gradient_scale = Told(str, otherwise="printed")

    ACTIONS: ClassVar[Mapping[str, str]] = {**FedEBAClient.ACTIONS, PROBE: "on_probe"}
    TRAINED: ClassVar[frozenset[str]] = FedEBAClient.TRAINED | {"first-step"}

    _alpha = _fair_share = 0.0
    _fair_gradient: Mapping[str, Tensor] = {}
    _first_step: Mapping[str, Tensor] = {}

    def on_probe(self, request: Request) -> Reply:
        """Report loss and, if asked, gradient of the received model."""
        load_arrays(self.model, request.arrays[ARRAYS])
        count = {NUM_EXAMPLES: len(self.train_data)}
        if not request.config.get("report-gradient"):
            return Reply(metrics={**count, LOSS_BEFORE: self.full_loss(request)})
        with self.layer_stream("probe", request.server_round):
            loss, gradient = probe_model(self.model, self.train_data, self.known_loss())
        # One entry for each array of the model: what is not trained has gradient 0.
        whole = {
            name: gradient.get(name, np.zeros_like(array))
            for name, array in request.arrays[ARRAYS].items()
        }
        return Reply({GRADIENT: whole}, {**count, LOSS_BEFORE: loss})

    @override
    def on_train(self, request: Request) -> Reply:
        self._take_fair_gradient(request)
        try:
            reply = super().on_train(request)
            if not request.config.get("report-first-step"):
                return reply
            steps = int(reply.metrics[NUM_STEPS])  # type: ignore[arg-type]
            scale = steps if request.config.get("rescale-first-step") else 1
            first = self._first_model(request.arrays[ARRAYS], reply.arrays[ARRAYS], scale)
            return Reply({**reply.arrays, "first-step": first}, reply.metrics)
        finally:
            # Clients of one process live on between rounds: keep no copies of the model.
            self._fair_gradient, self._first_step = {}, {}

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        if not self._fair_gradient:
            return
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.mul_(1.0 - self._alpha)
            parameter.grad.add_(self._fair_gradient[name], alpha=self._fair_share)

    @override
    def after_step(self, model: nn.Module, step: int) -> None:
        if step == 1 and not self._fair_gradient:
            self._first_step = {
                name: value.detach().clone()
                for name, value in model.state_dict(keep_vars=True).items()
                if isinstance(value, nn.Parameter)
            }

    def _take_fair_gradient(self, request: Request) -> None:
        arrays = request.arrays.get("fair-gradient")
        self._fair_gradient = {}
        if arrays is None:
            return
        alpha = request.config.get("alpha")
        if not isinstance(alpha, int | float):
            raise RunError(
                f"client {self.client_id}: the message has a fair gradient but no number "
                "alpha: use the strategy FedEBAPlus, or put it into the config"
            )
        self._alpha = self._fair_share = float(alpha)
        if self.fair_gradient_scale == "one-update":
            self._fair_share *= self.training.learning_rate_at(request.server_round)
        device = self.train_data.features.device
        self._fair_gradient = {
            name: torch.tensor(array, device=device) for name, array in arrays.items()
        }

    def _first_model(self, received: Arrays, trained: Arrays, scale: int) -> Arrays:
        """Return the trained model with the parameters of the first step in it."""
        first = dict(trained)
        for name, tensor in self._first_step.items():
            first[name] = tensor.cpu().numpy()
            if scale != 1:
                first[name] = received[name] + scale * (first[name] - received[name])
        return first
