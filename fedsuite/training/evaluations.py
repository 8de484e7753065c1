"""The evaluations of several clients that score one model on their test rows alone."""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any

from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, EVALUATE, NUM_EXAMPLES, Reply, Request
from fedsuite.models.arrays import load_arrays
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluation import evaluate_on_each
from fedsuite.training.losses import count_targets

_HOOKS = ("answer", "act", "protect", "on_evaluate", "evaluation")


class Unlike(Exception):
    """A client whose evaluation is not that of the others."""


def evaluations(asked: Iterable[tuple[Any, Request]]) -> dict[int, Reply]:
    """Return what each client would answer to its request, by client.

    Parameters
    ----------
    asked
        At least one client with its request to evaluate; taken one at a time.

    Raises
    ------
    Unlike
        If a client is not a :class:`FederatedClient` that evaluates as its base class does,
        or the clients' models differ. Each must then be asked by itself.
    """
    taken = iter(asked)
    first = next(taken)
    model, arrays = first[0].model, first[1].arrays[ARRAYS]
    counts: dict[int, int] = {}

    def parts() -> Iterator[Split]:
        for client, request in chain([first], taken):
            same = client.model is model and request.arrays.get(ARRAYS) is arrays
            if not (same and _is_plain(client)):
                raise Unlike
            client.heard = request.config
            counts[request.client_id] = count_targets(client.test_data.labels)
            yield client.test_data

    load_arrays(model, arrays)
    scores = evaluate_on_each(model, parts())
    return {
        client_id: Reply(
            metrics={NUM_EXAMPLES: count, "loss": loss, "accuracy": accuracy}
        )
        for (client_id, count), (loss, accuracy) in zip(
            counts.items(), scores, strict=True
        )
    }


def _is_plain(client: Any) -> bool:
    return (
        _evaluates_as_base(type(client))
        and client.validation_data is None
        and client.scoring.whole_test is None
        and not client.scoring.score_training_data
    )


@cache
def _evaluates_as_base(kind: type) -> bool:
    if not issubclass(kind, FederatedClient):
        return False
    same = all(getattr(kind, hook) is getattr(FederatedClient, hook) for hook in _HOOKS)
    trains = kind.TRAINED_BY == EVALUATE
    return same and not trains and kind.ACTIONS.get(EVALUATE) == "on_evaluate"
