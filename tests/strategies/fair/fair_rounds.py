"""Rounds of three scripted clients, for the methods that differ in how they aggregate.

The model is w = (0, 0), the clients answer MODELS, their losses at w are LOSSES and their
numbers of examples EXAMPLES. FedAvg gives (0.025, 0.1), the plain mean is (1/15, 1/30).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from fedsuite.clients.fair.probed import ProbedClient
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    ARRAYS,
    NUM_EXAMPLES,
    Reply,
    Request,
)
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions
from tests.helpers import (
    Matrix,
    MatrixClient,
    MatrixLoss,
    TamperingGrid,
    Trace,
    matrix_app,
    run,
    samples,
)

MODELS = ((0.2, 0.0), (-0.1, 0.3), (0.1, -0.2))
LOSSES = (0.5, 2.0, 1.0)
EXAMPLES = (10, 20, 10)
RATE = 0.1
START = (0.0, 0.0)

FEDAVG = (0.025, 0.1)
PLAIN_MEAN = (1 / 15, 1 / 30)

Extra = Callable[[int], Mapping[str, float]]


class ScriptedClient(MatrixClient):
    """Answers a model and metrics that were written down."""

    SENDS: ClassVar[frozenset[str]] = MatrixClient.SENDS | {
        *("loss-before", "loss-after", "initial_loss", "learning-rate"),
        *("discrepancy", "forgotten"),
    }

    script: Callable[[int, int], tuple[Sequence[float], Mapping[str, float]]]

    def on_train(self, request: Request) -> Reply:
        model, metrics = self.script(self.client_id, request.server_round)
        return Reply({ARRAYS: {"w": np.array(model, dtype=np.float32)}}, dict(metrics))

    def on_evaluate(self, request: Request) -> Reply:
        return Reply(metrics={NUM_EXAMPLES: 1})


def scripted_app(
    script: Callable[[int, int], tuple[Sequence[float], Mapping[str, float]]],
) -> ClientApp:
    """Return an app whose clients answer ``script(client, server_round)``."""

    def client_fn(context: Context, client_id: int) -> ScriptedClient:
        data = samples(0.0, 1)
        client = ScriptedClient(Matrix(), data, data, client_id=client_id)
        client.script = script
        return client

    return make_client_app(client_fn, list(ScriptedClient.ACTIONS))


def facts(client: int, loss: float, examples: float, **extra: float) -> dict[str, float]:
    named = {key.replace("_", "-"): value for key, value in extra.items()}
    return {
        NUM_EXAMPLES: examples,
        "loss-before": loss,
        "learning-rate": RATE,
        **named,
    }


def fair_round(
    strategy: FederatedStrategy,
    *,
    models: Sequence[Sequence[float]] = MODELS,
    losses: Sequence[float] = LOSSES,
    examples: Sequence[float] = EXAMPLES,
    start: Sequence[float] = START,
    num_rounds: int = 1,
    extra: Extra = lambda client: {},
) -> Trace:
    """Run rounds in which every client answers the same each time."""

    def script(client: int, server_round: int) -> tuple[Sequence[float], dict[str, float]]:
        told = facts(client, losses[client], examples[client])
        return models[client], told | dict(extra(client))

    grid = TamperingGrid(scripted_app(script), len(models))
    return run(strategy, grid, num_rounds, start_record(start))


def start_record(start: Sequence[float]) -> Any:
    return to_record({"w": np.array(start, dtype=np.float32)})


def three(**options: Any) -> dict[str, Any]:
    """Return the keywords of a strategy for three clients."""
    defaults = {"identity": "partition", "num_clients": 3, "min_available_nodes": 1}
    return defaults | options


def final(trace: Trace) -> np.ndarray:
    return trace.arrays[-1]["w"]


def shares(trace: Trace) -> list[float]:
    """Return the weights that the clients had in the last round."""
    rows = trace.reports[-1].train.rows
    return [float(row.get("weight", 0.0)) for row in rows]


class ProbedMatrixClient(MatrixLoss, ProbedClient):
    """The real client on the quadratic loss of ``tests.helpers``."""


def quadratic_run(
    strategy: FederatedStrategy,
    num_rounds: int = 3,
    client_class: Any = ProbedMatrixClient,
    **app: Any,
) -> Trace:
    """Run the tiny federation of ``tests.helpers``, two steps of 0.3 a round."""
    training = TrainingOptions(
        local_steps=2, batch_size=0, learning_rate=0.3, learning_rate_decay=0.9
    )
    options = {"training": training, **app}
    return run(strategy, TamperingGrid(matrix_app(client_class, **options), 3), num_rounds)


def plain_mean_run(num_rounds: int = 3, **app: Any) -> Trace:
    """Return FedAvg with equal weights on the same federation."""
    # Only replies to training have numbers of steps.
    strategy = FedAvg(weighted_by_key="num-steps", fraction_evaluate=0.0, **three())
    return quadratic_run(strategy, num_rounds, **app)


def initial_matrix() -> dict[str, np.ndarray]:
    return model_arrays(Matrix())
