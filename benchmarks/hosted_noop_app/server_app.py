"""Rounds of nothing, timed, with fedsuite's FedAvg."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.strategies import FedAvg
from fedsuite.workarounds.packed_grid import grid_for

app = ServerApp()


class Seconds(Callback):
    """Writes the seconds of the training phase of each round.

    Parameters
    ----------
    path
        File to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: list[float] = []

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Take note of a round."""
        self._seconds.append(report.seconds - report.seconds_evaluate)
        self._path.write_text(json.dumps(self._seconds))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; clients evaluate in the last alone."""
    config = context.run_config
    rounds = int(config["num-rounds"])
    strategy = FedAvg(
        num_clients=int(config["num-clients"]),
        min_available_nodes=int(config["num-nodes"]),
        evaluate_every=rounds,
        identity="partition",
    )
    model = Array(np.zeros(int(config["num-parameters"]), np.float32))
    strategy.start(
        grid_for(grid),
        ArrayRecord({"model": model}),
        num_rounds=rounds,
        callbacks=[Seconds(Path(str(config["output"])))],
    )
