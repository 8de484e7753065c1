"""The tracker MLflow: one store beside the run folders, unless the environment names one.

MLflow's own variables ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` choose another
store or another experiment.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from filelock import FileLock

from fedsuite.callbacks.tracking import Flat, TrackedRun, numbers
from fedsuite.rounds.events import RoundReport

# MLflow reads both as it is imported. It reports its use to its makers by default.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

STORE = "mlflow.db"
EXPERIMENT = "fedsuite"

MOST = 100
"""Most parameters that MLflow takes at once; it takes more metrics and as many tags."""

LONGEST = 5000
"""Most characters of a parameter's value or a tag."""

_NOT_IN_NAMES = re.compile(r"[^\w\-./ ]")


class MLflow:
    """Logs parameters, metrics by round, and the summary."""

    def __init__(self, run: TrackedRun) -> None:
        store = run.folder.path.parent / STORE
        address = os.environ.get("MLFLOW_TRACKING_URI", "")
        # Runs of a sweep begin together: the first one makes the tables.
        self._alone: AbstractContextManager[object] = (
            nullcontext() if address else FileLock(store.with_suffix(".lock"))
        )
        with self._alone:
            self._client = MlflowClient(address or f"sqlite:///{store}")
            self.run_id = run.run_id or self._new(run)
            self._client.update_run(self.run_id, status="RUNNING")
            # Rounds after the checkpoint of a killed run are there, with the same numbers.
            logged = self._client.get_metric_history(self.run_id, "seconds")
        self._last = max((metric.step for metric in logged), default=0)

    def log(self, report: RoundReport) -> None:
        """Log the round, unless it is there already."""
        if report.server_round > self._last:
            self._last = report.server_round
            self._send(dict(numbers(report)))

    def close(self, *, finished: bool, summary: Flat) -> None:
        """Log the summary, and end the run."""
        self._send(summary)
        with self._alone:
            status = "FINISHED" if finished else "FAILED"
            self._client.set_terminated(self.run_id, status)

    def _new(self, run: TrackedRun) -> str:
        """Begin a run, and return its identifier."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        number = (
            experiment.experiment_id if experiment else self._client.create_experiment(name)
        )
        created = self._client.create_run(number, run_name=run.folder.path.name)
        run_id = str(created.info.run_id)
        keys = [Param(k, str(v)[:LONGEST]) for k, v in run.experiment.items()]
        for start in range(0, len(keys), MOST):
            self._client.log_batch(run_id, params=keys[start : start + MOST])
        return run_id

    def _send(self, values: Flat) -> None:
        """Log numbers as metrics of the current round, and texts as tags."""
        now = int(time.time() * 1000)
        with self._alone:
            for some in _parts(values):
                metrics = [
                    Metric(name, value, now, self._last)
                    for name, value in some
                    if not isinstance(value, str)
                ]
                tags = [
                    RunTag(name, text[:LONGEST])
                    for name, text in some
                    if isinstance(text, str)
                ]
                self._client.log_batch(self.run_id, metrics=metrics, tags=tags)


def _parts(values: Flat) -> Iterator[list[tuple[str, float | str]]]:
    """Yield names that MLflow takes, with their values, as many as it takes at once."""
    named = [(_NOT_IN_NAMES.sub("_", name), value) for name, value in values.items()]
    for start in range(0, len(named), MOST):
        yield named[start : start + MOST]


tracker = MLflow
