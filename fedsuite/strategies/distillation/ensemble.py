"""Ensemble distillation on a server: a student learns the mean output of many models.

Equations of T. Lin, L. Kong, S. U. Stich, M. Jaggi, arXiv:2006.07242, section 3, with f_j
the teachers' logits, f the student's and KL(a, b) = sum a log(a / b), target first:

- ``avg-logits``: KL(softmax(mean_j f_j), softmax(f)), the paper's;
- ``avg-probs``: KL(mean_j softmax(f_j), softmax(f));
- ``avg-losses``: mean_j KL(softmax(f_j), softmax(f)). Its gradient is that of
  ``avg-probs``; its value is larger by the teachers' Jensen-Shannon divergence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.data.public_batches import public_batch
from fedsuite.method import Arrays, stream_seed
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.distillation import kl_divergence
from fedsuite.models.evaluation_mode import EVALUATION_BATCH, evaluation_mode
from fedsuite.strategies.distillation.network_averages import Combination

LARGEST_NORM = 5.0
"""Largest norm of a step's gradient, as in the authors' code."""


def ensemble_loss(student: Tensor, teachers: Tensor, combination: Combination) -> Tensor:
    """Return the divergence of a student from its teachers, the mean over a batch.

    Logits are (batch, classes) of the student and (teachers, batch, classes) of the
    teachers, into which no gradient flows.
    """
    if combination == "avg-losses":
        return torch.stack([kl_divergence(student, one) for one in teachers]).mean()
    if combination == "avg-probs":
        # The logarithm of the mean; a softmax leaves it as it is.
        logarithms = functional.log_softmax(teachers, dim=2)
        return kl_divergence(student, logarithms.logsumexp(dim=0))
    return kl_divergence(student, teachers.mean(dim=0))


@dataclass(frozen=True)
class EnsembleDistillation:
    """Distils models that a server received into models that it holds.

    ``build`` makes the module of a network by index. Each student gets an Adam of its own
    for ``steps`` >= 1 steps on ``batch_size`` rows of the public ``features``; the learning
    rate falls to 0 by a half cosine. ``seed`` draws batches and layers such as dropout.
    """

    build: Callable[[int], nn.Module]
    features: Tensor
    combination: Combination
    steps: int
    learning_rate: float
    batch_size: int
    seed: int

    @torch.no_grad()
    def outputs(self, index: int, arrays: Mapping[str, NDArray[Any]]) -> Tensor:
        """Return a model's logits of all public rows, in evaluation mode."""
        model = self.build(index)
        load_arrays(model, arrays, keep_infinite=True)
        with evaluation_mode(model):
            parts = torch.split(self.features, EVALUATION_BATCH)
            return torch.cat([model(part) for part in parts])

    def distil(
        self,
        index: int,
        start: Mapping[str, NDArray[Any]],
        teachers: Tensor,
        server_round: int,
    ) -> tuple[Arrays, float]:
        """Return a student's arrays after training from ``start``, and its mean loss.

        ``teachers`` stacks their :meth:`outputs`; ``server_round`` names the draws.
        """
        student = self.build(index)
        load_arrays(student, start, keep_infinite=True)
        student.train()
        optimizer = torch.optim.Adam(student.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        total = 0.0
        with torch.random.fork_rng(devices=[]):
            purpose = f"ensemble-layers/{index}"
            layers = stream_seed(self.seed, purpose, server_round)
            torch.default_generator.manual_seed(layers)
            for step in range(self.steps):
                rows = public_batch(
                    len(self.features), self.batch_size, self.seed, server_round, step
                )
                logits = student(self.features[rows])
                loss = ensemble_loss(logits, teachers[:, rows], self.combination)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(student.parameters(), LARGEST_NORM)
                optimizer.step()
                schedule.step()
                total += float(loss.detach())
        return model_arrays(student), total / self.steps
