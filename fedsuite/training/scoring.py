"""Scores beside the usual one: on other rows, and of models before averaging.

A score's name says which model and which rows:

- no prefix: the model that the method gives a client; ``global-``: the received one where
  that is another; ``trained-``: what local training left of it;
- no prefix: the client's test rows; ``validation-``: its validation rows; ``whole-test-``:
  all test rows of the data set.

``received-training-loss`` is of the model in the message, over all training rows of the
client.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from torch import nn

from fedsuite.core.keys import AUTO
from fedsuite.core.settings import Settings, given, key
from fedsuite.core.tasks import ACCURACY, is_told_score
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, EVALUATE, NUM_EXAMPLES, MetricValue, Request
from fedsuite.models.arrays import load_arrays
from fedsuite.training.evaluation import mean_loss, model_scores
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.losses import LossFunction, count_targets

_REMEMBERED = 2
"""Models whose scores are kept: clients take turns of their own and the shared one."""


class WholeTest:
    """The whole test part, for all clients of a process, on the models' device.

    Scores are remembered by a digest of the model: clients that score the same model, such
    as the one that all received, get the scores of the first of them.
    """

    def __init__(self, data: Split) -> None:
        self.data = data
        self._scores: OrderedDict[bytes, dict[str, MetricValue]] = OrderedDict()

    def scores(
        self,
        model: nn.Module,
        options: TrainingOptions | None = None,
        names: Sequence[str] = (ACCURACY.name,),
    ) -> dict[str, MetricValue]:
        """Return loss, scores and number of samples, by metric."""
        digest = _digest(model)
        scores = self._scores.pop(digest, None)
        if scores is None:
            scores = model_scores(model, self.data, options or TrainingOptions(), names)
        self._scores[digest] = scores
        while len(self._scores) > _REMEMBERED:
            self._scores.popitem(last=False)
        return prefixed("whole-test", {**scores, "examples": len(self.data)})


class Scoring(Settings):
    """Options of further scores."""

    scores: str = key(
        default=AUTO,
        help="scores of models beside the loss, comma-separated; auto is the task's short "
        "list, of classification the accuracy alone",
    )
    score_whole_test: bool = key(
        default=False,
        help="clients also score their models on the whole test part, not their own rows "
        "alone",
    )
    score_trained: bool = key(
        default=False,
        help="clients also score, in rounds that are evaluated, what local training left "
        "of the received model, before it is averaged",
    )
    score_training_data: bool = key(
        default=False,
        help="clients also tell, in rounds that are evaluated, the received model's loss "
        "over all their training rows: pooled, the convergence curve of the global model",
    )
    whole_test: WholeTest | None = given(
        default=None, help="the whole test part, where models are scored on it"
    )
    evaluate_every: int = given(default=1, help="rounds between evaluations")
    num_rounds: int = given(default=0, help="number of the last round, always evaluated")

    def is_scored(self, server_round: int) -> bool:
        """Return whether a round's models are evaluated."""
        return server_round % self.evaluate_every == 0 or server_round == self.num_rounds

    def received(
        self, model: nn.Module, request: Request, data: Split, loss: LossFunction
    ) -> dict[str, MetricValue]:
        """Return the received model's mean loss over ``data``, and the number of targets.

        Empty where the message is no evaluation of a whole model.
        Loads the model: the answer, which loads what it needs, comes after.
        """
        arrays = request.arrays.get(ARRAYS, {})
        if request.message_type != EVALUATE or set(arrays) != set(model.state_dict()):
            return {}
        load_arrays(model, arrays)
        return {
            "received-training-loss": mean_loss(model, data, loss),
            "training-examples": count_targets(data.labels),
        }


def is_score(metric: str) -> bool:
    """Return whether a metric is of an evaluated model on the client's own rows."""
    name = metric.removeprefix("validation-")
    return name in ("loss", "examples") or is_told_score(name)


def prefixed(prefix: str, scores: Mapping[str, MetricValue]) -> dict[str, MetricValue]:
    """Return scores under prefixed names, without the number of examples."""
    return {f"{prefix}-{key}": v for key, v in scores.items() if key != NUM_EXAMPLES}


def _digest(model: nn.Module) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        array = tensor.detach().cpu().numpy()
        # Of two networks other shapes may hold the same bytes.
        digest.update(f"{name}/{array.dtype}/{array.shape}/".encode())
        digest.update(array.tobytes())
    return digest.digest()
