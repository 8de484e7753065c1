"""A Flower app of somebody else's, made of two functions, and a run over it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_record
from fedsuite.workarounds.identity import flower_identity

Arrays = dict[str, np.ndarray]
Train = Callable[[int, Arrays], tuple[Arrays, dict[str, Any]]]


def plain_app(
    train: Train,
    evaluate: Callable[[int, Arrays], dict[str, Any]] | None = None,
    more: Mapping[str, ConfigRecord] | None = None,
) -> ClientApp:
    """Return an app whose clients are numbered from 0.

    Parameters
    ----------
    train, evaluate
        Get a client's number and the arrays; return arrays and metrics, or metrics.
    more
        Records that each reply to training holds too.
    """
    app = ClientApp()

    def received(message: Message) -> Arrays:
        return {name: array.numpy() for name, array in message.content["arrays"].items()}

    @app.train()
    def on_train(message: Message, context: Context) -> Message:
        arrays, metrics = train(int(context.node_config["partition-id"]), received(message))
        record = ArrayRecord({n: Array(np.asarray(a)) for n, a in arrays.items()})
        content = RecordDict({"arrays": record, "metrics": MetricRecord(metrics)})
        for name, own in (more or {}).items():
            content[name] = own
        return Message(content, reply_to=message)

    @app.evaluate()
    def on_evaluate(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        given = {"num-examples": 1, "eval_loss": 1.0}
        metrics = evaluate(number, received(message)) if evaluate else given
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def run_plain(
    strategy: Any,
    app: ClientApp,
    initial: Arrays,
    num_nodes: int = 3,
    num_rounds: int = 1,
    **options: Any,
) -> Result:
    """Run a strategy over an app from some arrays."""
    with flower_identity():
        grid = LocalGrid(app, num_nodes)
        result: Result = strategy.start(grid, to_record(initial), num_rounds, **options)
    return result


def final(result: Result) -> Arrays:
    """Return the arrays that a run ended with."""
    return {name: array.numpy() for name, array in result.arrays.items()}
