"""The evaluations of several clients that score one model on their test rows alone."""

from collections.abc import Iterable, Sequence

from torch import nn

from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, EVALUATE, NUM_EXAMPLES, Reply, Request
from fedsuite.models.arrays import load_arrays
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluation import evaluate_on_each
from fedsuite.training.losses import count_targets

_HOOKS = ("answer", "act", "protect", "on_evaluate", "evaluation")


def evaluates_as_base(kind: type[FederatedClient]) -> bool:
    """Return whether a class evaluates as its base class does."""
    same = all(getattr(kind, hook) is getattr(FederatedClient, hook) for hook in _HOOKS)
    trains = kind.TRAINED_BY == EVALUATE
    return same and not trains and kind.ACTIONS.get(EVALUATE) == "on_evaluate"


def evaluations(
    model: nn.Module, requests: Sequence[Request], tests: Iterable[Split]
) -> dict[int, Reply]:
    """Return what :meth:`FederatedClient.on_evaluate` would answer, by client.

    Parameters
    ----------
    model
        The clients' network.
    requests
        Requests to evaluate the same model.
    tests
        Each client's test rows.
    """
    load_arrays(model, requests[0].arrays[ARRAYS])
    parts = list(tests)
    scores = zip(requests, parts, evaluate_on_each(model, parts), strict=True)
    return {
        request.client_id: Reply(
            metrics={
                NUM_EXAMPLES: count_targets(data.labels),
                "loss": loss,
                "accuracy": accuracy,
            }
        )
        for request, data, (loss, accuracy) in scores
    }
