"""Client of FedMPR: prunes by magnitude, in stages, while features are disturbed."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import FederatedClient, Reply, Request, Told, TrainingOptions
from fedsuite.models.head import find_head

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def share_at(share: float, stage: int, stages: int) -> float:
    """Return what share of the weights is 0 after a stage, counted from 1."""
    return 1.0 - float((1.0 - share) ** (stage / stages))


def largest(parameters: Sequence[Tensor], share: float) -> list[Tensor]:
    """Return masks that are 0 for this share of all entries together, the smallest.

    Of n entries floor(share n) are 0, with ties to the first.
    """
    sizes = torch.cat([p.detach().abs().flatten() for p in parameters])
    # Rounding of a share must not keep one entry more.
    count = int(share * len(sizes) + 1e-9)
    mask = torch.ones_like(sizes)
    mask[sizes.sort(stable=True).indices[:count]] = 0.0
    parts = torch.split(mask, [p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


class FedMPRClient(FederatedClient):
    """Trains the received model with disturbed features, and prunes it in stages."""

    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {"most-pruned"}
    prune_share = Told(float)
    prune_stages = Told(int)
    prune_what = Told(str)
    feature_dropout = Told(float)
    feature_noise = Told(float)
    _masks: Sequence[Tensor] = ()
    _stage = 0
    _steps = 0

    @override
    def on_train(self, request: Request) -> Reply:
        self._masks, self._stage = [], 0
        head = find_head(self.model)[1]
        hook = head.register_forward_pre_hook(self._disturb)
        try:
            reply = super().on_train(request)
        finally:
            hook.remove()
        zeros = [1.0 - float(mask.mean()) for mask in self._masks]
        return Reply(
            reply.arrays, {**reply.metrics, "most-pruned": max(zeros, default=0.0)}
        )

    @override
    def mini_batches(
        self, num_examples: int, training: TrainingOptions, generator: torch.Generator
    ) -> Iterator[Tensor]:
        batches = list(super().mini_batches(num_examples, training, generator))
        self._steps = len(batches)
        yield from batches

    @torch.no_grad()
    @override
    def before_step(self, model: nn.Module) -> None:
        for parameter, mask in zip(self._pruned(model), self._masks, strict=False):
            if parameter.grad is not None:
                parameter.grad.mul_(mask)

    @torch.no_grad()
    @override
    def after_step(self, model: nn.Module, step: int) -> None:
        parameters = self._pruned(model)
        stage = step * self.prune_stages // self._steps
        if stage > self._stage and self.prune_share > 0:
            share = share_at(self.prune_share, stage, self.prune_stages)
            self._masks = largest(parameters, share)
        self._stage = stage
        for parameter, mask in zip(parameters, self._masks, strict=False):
            parameter.mul_(mask)

    def _pruned(self, model: nn.Module) -> list[Tensor]:
        if self.prune_what == "all":
            return list(model.parameters())
        return [module.weight for module in model.modules() if isinstance(module, LAYERS)]

    def _disturb(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the classifier's inputs with dropout and noise, if it is training."""
        features, *others = inputs
        if head.training and self.feature_dropout > 0:
            features = functional.dropout(features, self.feature_dropout)
        if head.training and self.feature_noise > 0:
            features = features + self.feature_noise * torch.randn_like(features)
        return (features, *others)
