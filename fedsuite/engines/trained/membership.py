"""How a run's final model, and a site's reply to it, score rows trained on and held out.

The reply is what the site's own client sends when it is asked to train the final model.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedsuite.core.keys import AUTO
from fedsuite.core.tasks import OF_CLASSES
from fedsuite.core.vectors import Vector
from fedsuite.data import ClientData, DataSettings, Split
from fedsuite.engines.grid import node_context
from fedsuite.engines.trained.experiment import experiment_of
from fedsuite.engines.trained.network import global_model
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.decomposition import clients_take_part
from fedsuite.messages.records import ARRAYS, SERVER_ROUND, TRAIN, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.results.reader import Run
from fedsuite.running.initial_model import no_global_model
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import server_parts
from fedsuite.running.worker import Worker
from fedsuite.training.store import MemoryStore

_BATCH = 1024


class RowScores(NamedTuple):
    """Scores of rows that a client of a run held, its classes' log odds.

    Parameters
    ----------
    rows
        Number of each row in the training part; the same in runs of other seeds.
    members
        Whether the client trained on it, or kept it to validate on.
    of_model, of_reply
        By the final model, and by the client's reply to it; the latter is NaN where the
        method's replies are no models of the one that all share.
    """

    rows: NDArray[np.int64]
    members: NDArray[np.bool_]
    of_model: Vector
    of_reply: Vector


def why_no_membership(experiment: Experiment) -> str:
    """Return why an experiment's rows cannot be told by their scores; empty if they can."""
    data = experiment.group(DataSettings)
    if data.sites:
        return "sites' rows are not ours to train on by halves"
    if reason := no_global_model(experiment):
        return f"method {experiment['method']} ends without one model for all, for {reason}"
    if data.task_name not in OF_CLASSES or data.spec.words:
        return "it asks how sure a model is of a row's class, and these rows have none"
    return ""


def row_scores(run: Run) -> RowScores:
    """Return the scores of a finished run's training and validation rows."""
    experiment = experiment_of(run.path)
    data, model = federated_data(experiment), global_model(run)
    reply_of = _replies(experiment, model, run.last_round + 1)
    parts: list[RowScores] = []
    for client_id in range(data.num_clients):
        held = data.client(client_id)
        reply = reply_of(client_id) if len(held.train) else None
        for rows, split, is_member in (
            (data.partition.train[client_id], held.train, True),
            *_validation(data.partition.validation, client_id, held),
        ):
            of_model = log_odds(model, split)
            of_reply = (
                np.full(len(rows), np.nan) if reply is None else log_odds(reply, split)
            )
            members = np.full(len(rows), is_member)
            parts.append(RowScores(np.asarray(rows), members, of_model, of_reply))
    return RowScores(*map(np.concatenate, zip(*parts, strict=True)))


def _validation(
    positions: object, client_id: int, held: ClientData
) -> Iterator[tuple[NDArray[np.int64], Split, bool]]:
    if held.validation is not None and positions:
        yield positions[client_id], held.validation, False  # type: ignore[index]


def log_odds(model: nn.Module, split: Split) -> Vector:
    """Return log p - log(1 - p) of each row's own class, ``[rows]``."""
    scores = [np.empty(0)]
    model.eval()
    with torch.no_grad():
        for first in range(0, len(split), _BATCH):
            labels = split.labels[first : first + _BATCH, None]
            logits = model(split.features[first : first + _BATCH]).double()
            others = logits.scatter(1, labels, -torch.inf).logsumexp(1)
            scores.append((logits.gather(1, labels)[:, 0] - others).numpy())
    return np.concatenate(scores)


def _replies(
    experiment: Experiment, model: nn.Module, server_round: int
) -> Callable[[int], nn.Module | None]:
    """Return what gives a client's reply to a model as a model; None where it is none."""
    strategy_class = experiment.strategy
    if strategy_class.released().kind == "refused" or clients_take_part(experiment.values):
        return lambda client_id: None
    data = federated_data(experiment)
    replied = network_model(experiment, data)
    parts = server_parts(experiment, data, replied)
    strategy = build_strategy(experiment, parts)
    worker = Worker(experiment.replace(device="cpu", state_dir=AUTO), MemoryStore())
    arrays = model_arrays(model)

    def reply(client_id: int) -> nn.Module:
        exchange = strategy.train_exchange(arrays, [client_id])
        config = {**exchange.config, SERVER_ROUND: server_round}
        request = Request(TRAIN, client_id, exchange.shared, config)
        answer = worker.client(node_context(0, 1, {}), client_id).answer(request)
        load_arrays(replied, answer.arrays[ARRAYS])
        return replied

    return reply
