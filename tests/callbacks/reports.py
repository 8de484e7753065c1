"""Reports and states made by hand."""

from collections.abc import Sequence

import numpy as np

from fedsuite.callbacks import RoundReport, RunState
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_record
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.report import PhaseReport
from tests.helpers import matrix_app, strategy_for

TIMES = (0.25, 0.125, 0.0625, 0.03125)
NO_TIME = (0.0, 0.0, 0.0, 0.0)


def a_report(
    server_round: int = 1,
    num_rounds: int = 9,
    accuracies: Sequence[float] = (0.5, 0.75),
    **metrics: float,
) -> RoundReport:
    train = PhaseReport("train", num_asked=3, bytes_down=48, bytes_up=32)
    train.rows = [
        {"client": 0, "num_examples": 1, "loss": 1.0},
        {"client": "north", "num_examples": 3, "loss": 2.0},
    ]
    train.rejections = [Rejection(server_round, 2, Kind.NOT_FINITE, "metric loss is nan")]
    evaluate = PhaseReport("evaluate", bytes_down=16)
    evaluate.rows = [
        {"client": k, "num_examples": 1, "accuracy": accuracy}
        for k, accuracy in enumerate(accuracies)
    ]
    return RoundReport(server_round, num_rounds, train, evaluate, {}, metrics, *TIMES)


def a_state(weight: float = 0.0, num_rounds: int = 9) -> RunState:
    arrays = to_record({"weight": np.full((2, 2), weight, dtype=np.float32)})
    grid = LocalGrid(matrix_app(), 3)
    return RunState(strategy_for("single"), grid, num_rounds, arrays)
