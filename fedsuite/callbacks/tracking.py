"""Trackers of experiments: what they are told of a run, and that none can stop it."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from typing_extensions import override

from fedsuite.core.errors import one_line
from fedsuite.core.extras import MissingExtraError, naming_extras
from fedsuite.core.keys import Value
from fedsuite.results.layout import SUMMARY, read_manifest, read_object
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import Callback, RoundReport, RunState

IDS = "trackers"
"""Entry of the manifest: the trackers' own names of the run, by tracker."""

Flat = dict[str, float | str]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedRun:
    """Run that trackers are told of.

    Parameters
    ----------
    folder
        The run's folder.
    experiment
        The full resolved experiment by kebab-case key.
    server_round
        Round after which the run goes on; 0 is a new run.
    run_id
        The tracker's own name of a run that goes on; empty for a new run.
    """

    folder: RunFolder
    experiment: Mapping[str, Value]
    server_round: int = 0
    run_id: str = ""


class Tracker(Protocol):
    """A run in a tracker, open since the object was made of a :class:`TrackedRun`.

    ``run_id`` is the tracker's own name of the run, under which a resumed run goes on;
    empty where the tracker has none.
    """

    run_id: str

    def log(self, report: RoundReport) -> None:
        """Log a round."""

    def close(self, *, finished: bool, summary: Flat) -> None:
        """Log the summary of a finished run, and end."""


class Tracking(Callback):
    """Tells a tracker of a run; a tracker that fails is left out, with one warning.

    Parameters
    ----------
    name
        The tracker: a module of :mod:`fedsuite.callbacks` with a function ``tracker``.
    folder, experiment
        As in :class:`TrackedRun`.
    """

    def __init__(
        self, name: str, folder: RunFolder, experiment: Mapping[str, Value]
    ) -> None:
        self._name = name
        self._folder = folder
        self._experiment = experiment
        self._tracker: Tracker | None = None

    @override
    def on_start(self, state: RunState) -> None:
        with self._harmless():
            known = read_manifest(self._folder.path).get(IDS, {})
            run = TrackedRun(
                self._folder,
                self._experiment,
                state.server_round,
                known.get(self._name, ""),
            )
            with naming_extras(f"tracker {self._name}"):
                module: Any = import_module(f"fedsuite.callbacks.{self._name}")
                self._tracker = module.tracker(run)
            if self._tracker and self._tracker.run_id:
                ids = {**known, self._name: self._tracker.run_id}
                self._folder.update_manifest(**{IDS: ids})

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        if self._tracker is not None:
            with self._harmless():
                self._tracker.log(report)

    def close(self, *, finished: bool) -> None:
        """Close the tracker, with the summary of a finished run."""
        if self._tracker is not None:
            with self._harmless():
                path = self._folder.path / SUMMARY
                summary = flat(read_object(path)) if finished else {}
                self._tracker.close(finished=finished, summary=summary)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Leave the tracker out from now on if it fails inside the block."""
        try:
            yield
        except Exception as error:  # whatever a tracker raises, the run goes on
            reason = f"tracker {self._name} failed ({type(error).__name__}: "
            reason += f"{one_line(error)})"
            if isinstance(error, MissingExtraError):
                reason = str(error)
            logger.warning("%s: the run goes on without it", reason)
            failed, self._tracker = self._tracker, None
            with suppress(Exception):
                if failed is not None:
                    failed.close(finished=False, summary={})


@contextmanager
def tracking(
    names: Sequence[str], folder: RunFolder, experiment: Mapping[str, Value]
) -> Iterator[list[Tracking]]:
    """Yield the trackers' callbacks, and close the trackers after the block.

    A run whose summary is written inside the block leaves it to the trackers too.
    """
    trackers = [Tracking(name, folder, experiment) for name in names]
    finished = False
    try:
        yield trackers
        finished = True
    finally:
        for tracker in trackers:
            tracker.close(finished=finished)


def numbers(report: RoundReport) -> dict[str, float]:
    """Return a round's metrics that are numbers, without its own number."""
    return {
        name: float(value)
        for name, value in report.metrics.items()
        if name != "round" and isinstance(value, int | float)
    }


def flat(summary: Mapping[str, Any], prefix: str = "summary") -> Flat:
    """Return a summary's numbers and texts by path, without the last round's metrics."""
    by_path: Flat = {}
    for name, value in summary.items():
        path = f"{prefix}/{name}"
        if isinstance(value, Mapping) and name != "last_round":
            by_path |= flat(value, path)
        elif isinstance(value, int | float | str):
            by_path[path] = value
    return by_path
