"""A client of FedAKD by hand: its data, its networks, and what it was seen to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.clients.distillation.fedakd import FedAKDClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Arrays, Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.training.loop import TrainingOptions

WORK: dict[str, Any] = {
    "global-to-local-weight": 1.0,
    "local-to-global-weight": 1.0,
    "distillation-temperature": 1.0,
    "confidence-threshold": 0.0,
    "fedakd-order": "paper",
    "fedakd-ablation": "none",
}
SGD = TrainingOptions(batch_size=8, learning_rate=0.1)
ADAM = TrainingOptions(batch_size=8, learning_rate=0.01, optimizer="adam")
ONE_STEP = TrainingOptions(batch_size=0, local_steps=1, learning_rate=0.5)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3))


def normalised() -> nn.Module:
    """A network with all that a teacher in training mode would change or draw."""
    # Two numbers a channel, so that a last batch of one sample has a variance too.
    norm = nn.Sequential(nn.Unflatten(1, (3, 2)), nn.BatchNorm1d(3), nn.Flatten())
    return nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))


def data(seed: int = 0, count: int = 37) -> Split:
    """Return three overlapping classes, hard enough that some samples stay wrong."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    centres = 1.2 * functional.one_hot(labels, 4).float()
    return Split(centres + torch.randn(count, 4, generator=generator), labels)


def seeded(build: Any, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = build()
    return model


class Watched(FedAKDClient):
    """Notes each teacher before and after, and each training's rows and start."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.teachers: list[tuple[Arrays, Arrays]] = []
        self.questions = 0
        self.rows: list[list[int] | None] = []
        self.starts: list[Arrays] = []

    @contextmanager
    def _taught(self, teacher: nn.Module, *options: Any) -> Iterator[None]:
        before = model_arrays(teacher)
        hook = teacher.register_forward_hook(self._count)
        with super()._taught(teacher, *options):
            yield
        hook.remove()
        self.teachers.append((before, model_arrays(teacher)))

    def _count(self, *_: Any) -> None:
        self.questions += 1

    def train_locally(self, *args: Any, **options: Any) -> Any:
        rows: Tensor | None = options.get("rows")
        self.rows.append(None if rows is None else rows.tolist())
        self.starts.append(model_arrays(self.model))
        return super().train_locally(*args, **options)


def client(
    build: Any = normalised,
    *,
    training: TrainingOptions = ADAM,
    split: Split | None = None,
    client_class: Any = Watched,
    client_id: int = 0,
) -> Any:
    split = data() if split is None else split
    return client_class(
        seeded(build, 0), split, split, training=training, client_id=client_id, seed=5
    )


def train(
    who: Any, arrays: Arrays, server_round: int = 1, start: str = "", **work: Any
) -> Reply:
    names = {name.replace("_", "-"): value for name, value in work.items()}
    config = {**WORK, **names, "server-round": server_round}
    version = f"{server_round}.1"
    request = Request("train", who.client_id, {ARRAYS: arrays}, config, start, "", version)
    reply: Reply = who.answer(request)
    return reply


def kept(who: Any, version: str = "1.1") -> Arrays:
    arrays: Arrays = who.store.load(who.client_id, version)
    return arrays


def received(build: Any = normalised) -> Arrays:
    """Return a global model that is not where the clients start."""
    return model_arrays(seeded(build, 1))


def hits(build: Any, arrays: Arrays, split: Split) -> list[int]:
    """Return the samples that a model gets right, found without the client's code."""
    model = build()
    load_arrays(model, arrays)
    model.eval()
    with torch.no_grad():
        right = model(split.features).argmax(dim=1) == split.labels
    return [i for i, hit in enumerate(right.tolist()) if hit]
