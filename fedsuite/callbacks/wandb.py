"""The tracker Weights & Biases: files in the run's folder, which you may upload later.

W&B's own variables ``WANDB_MODE`` and ``WANDB_PROJECT`` choose another mode or another
project.
"""

import os
import secrets
from typing import Any

from fedsuite.callbacks.tracking import Flat, TrackedRun, numbers
from fedsuite.rounds.events import RoundReport

# W&B reads it as it is imported. It reports its own failures to its makers by default.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

MODE = "offline"
PROJECT = "fedsuite"


class WeightsAndBiases:
    """Logs the configuration, metrics by round, and the summary.

    Nothing else of this machine is written: no output, no source code, no list of packages.
    """

    def __init__(self, run: TrackedRun) -> None:
        mode: Any = os.environ.get("WANDB_MODE", MODE)
        self.run_id = run.run_id or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.run_id,
            name=run.folder.path.name,
            dir=str(run.folder.path),
            config=dict(run.experiment),
            mode=mode,
            # Offline there is nothing to look up: the upload joins what has one id.
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_code=True,
                disable_git=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def log(self, report: RoundReport) -> None:
        """Log the round."""
        self._run.log(numbers(report), step=report.server_round)

    def close(self, *, finished: bool, summary: Flat) -> None:
        """Log the summary, and end the run."""
        self._run.summary.update(summary)
        self._run.finish(exit_code=0 if finished else 1)


tracker = WeightsAndBiases
