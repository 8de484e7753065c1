"""The steps of clients that train together, each as one computation for all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsuite.data import Split
from fedsuite.data.specs import IGNORED
from fedsuite.training.loop import TrainingOptions, TrainingSummary, optimizer_of
from fedsuite.training.stacked import StackedCrossEntropy, StackedNetwork

ROWS_BYTES = 64 << 20
"""Bytes of mini-batches that are gathered at once, if a step has no more."""

_NO_ROW = -1


@dataclass(frozen=True)
class BatchedHook:
    """What a client's hooks do to each gradient g: ``keep g + offset + pull (w - start)``.

    Parameters
    ----------
    keep
        Factor on the gradient.
    offsets
        Name to what is added, on the model's device; other arrays get nothing.
    pull
        Factor on the distance from the model as the training found it.
    pulled
        Names of the arrays that are pulled; None is all that are trained.
    watched
        Number of the step after which the hook ``after_step`` is called; 0 is none.
    """

    keep: float = 1.0
    offsets: Mapping[str, Tensor] = field(default_factory=dict)
    pull: float = 0.0
    pulled: frozenset[str] | None = None
    watched: int = 0


@dataclass
class Training:
    """The training of one client, with the arrays that it starts from.

    Parameters
    ----------
    model
        Network that holds the arrays, and that other clients use too.
    data, batches
        Rows, and the numbers of those of each step, on the CPU.
    options, server_round
        Options, and the round.
    hook
        What the client does to gradients.
    after_step
        The client's hook of that name.
    """

    model: nn.Module
    data: Split
    batches: Sequence[Tensor]
    options: TrainingOptions
    server_round: int
    hook: BatchedHook
    after_step: Callable[[nn.Module, int], None]

    def __post_init__(self) -> None:
        named = dict(self.model.named_parameters())
        self.trained = frozenset(n for n, p in named.items() if p.requires_grad)
        self.arrays = {n: p.detach().clone() for n, p in named.items()}

    def likeness(self) -> tuple[object, ...]:
        """Return what trainings that go together share."""
        hook, how = self.hook, (self.options, self.server_round, self.trained)
        return (self.model, *how, frozenset(hook.offsets), hook.pulled, hook.watched)

    @torch.no_grad()
    def put_back(self) -> None:
        """Copy the client's arrays into the network, and mark those that are trained."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self.arrays[name])
            parameter.requires_grad_(name in self.trained)


def train_together(
    network: StackedNetwork, trainings: Sequence[Training]
) -> list[TrainingSummary]:
    """Train alike clients, each on at least one mini-batch; return their summaries.

    Their ``arrays`` are the trained ones then.
    """
    # Those who still have steps to take stand first.
    members = sorted(trainings, key=lambda member: -len(member.batches))
    options, server_round = members[0].options, members[0].server_round
    names = list(members[0].arrays)
    stack = {n: torch.stack([member.arrays[n] for member in members]) for n in names}
    for place, member in enumerate(members):
        member.arrays = {name: array[place] for name, array in stack.items()}
    corrections = _Corrections(members, stack)
    loss = StackedCrossEntropy(options.focal_gamma if options.loss == "focal" else 0.0)
    device = members[0].data.features.device
    total, seen = torch.zeros(2, len(members), dtype=torch.float64, device=device)
    optimizer, arrays, count = None, dict[str, Tensor](), 0
    for step, (features, labels, counts) in enumerate(_mini_batches(members), 1):
        if features.shape[0] != count:
            count = features.shape[0]
            arrays = {n: array[:count].detach() for n, array in stack.items()}
            trained = [n for n in names if n in members[0].trained]
            parameters = [arrays[n].requires_grad_() for n in trained]
            optimizer = _shortened(optimizer, parameters, options, server_round)
        losses, gradients = network(arrays, features, labels, counts, loss)
        corrections.correct(gradients, arrays)
        if options.clip_gradient_norm > 0:
            _clip(gradients, options.clip_gradient_norm)
        for name, gradient in gradients.items():
            arrays[name].grad = gradient
        assert optimizer is not None
        optimizer.step()
        total[:count] += losses * counts
        seen[:count] += counts
        if step == members[0].hook.watched:
            for member in members[:count]:
                member.put_back()
                member.after_step(member.model, step)
    means = (total / seen.clamp_min(1)).tolist()
    found = {
        id(member): TrainingSummary(mean, len(member.batches))
        for member, mean in zip(members, means, strict=True)
    }
    return [found[id(training)] for training in trainings]


class _Corrections:
    """The hooks of clients that train together."""

    def __init__(self, members: Sequence[Training], stack: Mapping[str, Tensor]) -> None:
        hooks = [member.hook for member in members]
        some = next(iter(stack.values()))
        self._keep = _numbers([hook.keep for hook in hooks], 1.0, some)
        self._pull = _numbers([hook.pull for hook in hooks], 0.0, some)
        self._offsets = {
            name: torch.stack([hook.offsets[name] for hook in hooks])
            for name in hooks[0].offsets
        }
        pulled = hooks[0].pulled
        self._starts = {
            name: array.clone()
            for name, array in stack.items()
            if self._pull is not None and (pulled is None or name in pulled)
        }

    @torch.no_grad()
    def correct(
        self, gradients: Mapping[str, Tensor], arrays: Mapping[str, Tensor]
    ) -> None:
        """Correct gradients ``[clients, ...]`` in place."""
        for name, gradient in gradients.items():
            count = gradient.shape[0]
            if self._keep is not None:
                gradient.mul_(_beside(self._keep[:count], gradient))
            if name in self._offsets:
                gradient.add_(self._offsets[name][:count])
            if self._pull is not None and name in self._starts:
                away = arrays[name] - self._starts[name][:count]
                gradient.addcmul_(away, _beside(self._pull[:count], gradient))


def _numbers(values: Sequence[float], without: float, like: Tensor) -> Tensor | None:
    """Return one number per client, None if all are what changes nothing."""
    if all(value == without for value in values):
        return None
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def _beside(numbers: Tensor, array: Tensor) -> Tensor:
    """Return one number per client in a shape that multiplies an array of all clients."""
    return numbers.view(-1, *[1] * (array.ndim - 1))


def _clip(gradients: Mapping[str, Tensor], limit: float) -> None:
    """Clip each client's gradient in place, as torch clips one."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factors = (limit / (norms + 1e-6)).clamp_max(1.0)
    for gradient in gradients.values():
        gradient.mul_(_beside(factors, gradient))


def _shortened(
    before: torch.optim.Optimizer | None,
    parameters: Sequence[Tensor],
    options: TrainingOptions,
    server_round: int,
) -> torch.optim.Optimizer:
    """Return an optimiser that goes on for the first clients alone."""
    optimizer = optimizer_of(parameters, options, server_round)
    if before is not None:
        old = before.param_groups[0]["params"]
        for was, now in zip(old, parameters, strict=True):
            optimizer.state[now] = {
                # Adam counts steps in a tensor without axes.
                key: value[: len(now)]
                if isinstance(value, Tensor) and value.ndim
                else value
                for key, value in before.state[was].items()
            }
    return optimizer


def _mini_batches(
    members: Sequence[Training],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield features, labels and numbers of targets of each step, for all who take it.

    Rows that fill a mini-batch up have no target that counts.
    """
    steps = [len(member.batches) for member in members]
    # Torch takes longer to answer len.
    sizes = [[batch.numel() for batch in member.batches] for member in members]
    widths = [max(of[k] for of in sizes if k < len(of)) for k in range(steps[0])]
    features, labels = members[0].data.features, members[0].data.labels
    rows = _row_numbers(members, sizes, max(widths)).to(features.device)
    row_bytes = features[:1].numel() * features.element_size()
    block = max(1, ROWS_BYTES // (len(members) * max(widths) * max(row_bytes, 1)))
    for first in range(0, steps[0], block):
        count = sum(number > first for number in steps)
        asked = rows[:count, first : first + block]
        taken = _taken([m.data.features for m in members[:count]], asked)
        targets = _taken([m.data.labels for m in members[:count]], asked)
        filling = (asked == _NO_ROW).view(*asked.shape, *[1] * (labels.ndim - 1))
        targets.masked_fill_(filling, IGNORED)
        counts = (targets != IGNORED).flatten(2).sum(2)
        for k in range(asked.shape[1]):
            left = sum(number > first + k for number in steps)
            width = widths[first + k]
            yield taken[:left, k, :width], targets[:left, k, :width], counts[:left, k]


def _row_numbers(
    members: Sequence[Training], sizes: Sequence[Sequence[int]], width: int
) -> Tensor:
    """Return the rows of all steps, ``[clients, steps, width]``, filled up."""
    flat = torch.cat([batch for member in members for batch in member.batches])
    steps = len(sizes[0])
    lengths = torch.tensor([[*of, *[0] * (steps - len(of))] for of in sizes])
    held = torch.arange(width) < lengths[:, :, None]
    return torch.full(held.shape, _NO_ROW).masked_scatter_(held, flat)


def _taken(sources: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Return rows ``[clients, steps, width]`` of each client's tensor, with its axes."""
    numbers = rows.clamp_min(0).flatten(1)
    shape = (*numbers.shape, *sources[0].shape[1:])
    taken = torch.empty(shape, dtype=sources[0].dtype, device=sources[0].device)
    for source, wanted, place in zip(sources, numbers, taken, strict=True):
        torch.index_select(source, 0, wanted, out=place)
    return taken.view(*rows.shape, *taken.shape[2:])
