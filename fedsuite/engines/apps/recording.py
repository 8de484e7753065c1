"""A run folder of what the replies to an app held."""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsuite.callbacks.recorder import Recorder
from fedsuite.core.errors import described, one_line
from fedsuite.core.keys import Value
from fedsuite.core.metrics import is_fraction, range_of
from fedsuite.core.vectors import norm
from fedsuite.engines.apps.grid import Sent
from fedsuite.engines.apps.nodes import Federation
from fedsuite.messages.records import EVALUATE, TRAIN
from fedsuite.results.layout import APP_ENGINE
from fedsuite.results.summary import write_summary
from fedsuite.results.writer import RunFolder, noting_failure
from fedsuite.rounds.events import RoundReport
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.report import PhaseReport, Row

_LEGACY_METRICS = ("fitres.metrics", "evaluateres.metrics")
_ACCURACY = {"acc", "accuracy"}
_NUM_EXAMPLES = "num_examples"


class AppRecorder:
    """Writes the folder of a run, a round at a time, for as long as the block lasts.

    Parameters
    ----------
    path
        The folder.
    name
        The app's name, which stands where other runs name their method.
    federation
        The nodes.
    others
        More of what the experiment is.
    """

    def __init__(
        self, path: Path, name: str, federation: Federation, others: Mapping[str, Value]
    ) -> None:
        self._path = path
        self._experiment: dict[str, Value] = {
            "method": name,
            "num-clients": len(federation.node_ids),
            **({} if federation.seed is None else {"seed": federation.seed}),
            **others,
            **{f"run-config.{k}": value for k, value in federation.run_config.items()},
        }
        self._server_round = 0
        self._phases: dict[str, PhaseReport] = {}
        self._seconds = dict.fromkeys((TRAIN, EVALUATE), 0.0)
        # Legacy strategies send from several threads.
        self._lock = threading.Lock()

    def __enter__(self) -> "AppRecorder":
        manifest = {
            "method": self._experiment["method"],
            "dataset": None,
            "seed": self._experiment.get("seed"),
            "engine": APP_ENGINE,
            "num_clients": self._experiment["num-clients"],
        }
        self._folder = RunFolder.create(self._path, self._experiment, manifest)
        self._recorder = Recorder(self._folder)
        self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end_round()
            write_summary(self._folder)
        finally:
            if isinstance(error, KeyboardInterrupt):
                self._folder.finish("stopped")
            elif error is not None:
                self._folder.finish("failed", described(error))
            else:
                with noting_failure(self._folder):
                    self._folder.finish("finished")

    def exchanged(self, exchanges: Sequence[tuple[Sent, Message, float]]) -> None:
        """Take in messages, the replies to them, and the seconds that these took."""
        with self._lock:
            for sent, reply, seconds in exchanges:
                if sent.category not in (TRAIN, EVALUATE):
                    continue
                if sent.server_round > self._server_round:
                    self._end_round()
                    self._server_round = sent.server_round
                self._seconds[sent.category] += seconds
                self._take(sent, reply, seconds)

    # --------------------------------------------------------------------------- machinery

    def _take(self, sent: Sent, reply: Message, seconds: float) -> None:
        phase = self._phases.setdefault(sent.category, PhaseReport(sent.category))
        phase.num_asked += 1
        phase.bytes_down += _num_bytes(sent.message.content)
        if reply.has_error():
            reason = one_line(reply.error.reason or f"error {reply.error.code}")
            phase.rejections.append(
                Rejection(sent.server_round, sent.partition, Kind.NODE_FAILED, reason)
            )
            return
        phase.bytes_up += _num_bytes(reply.content)
        row: Row = {"client": sent.partition, _NUM_EXAMPLES: 1.0}
        for name, value in _metrics(reply.content):
            least, most = range_of(name, sent.category, own=False)
            if math.isfinite(value) and least <= value <= most:
                row[name] = value
            else:
                phase.left_out.setdefault(name, {})[sent.partition] = value
        _add_accuracy(row, sent.category)
        row["seconds"] = seconds
        if sent.category == TRAIN:
            length = _update_norm(sent.message.content, reply.content)
            if length is not None:
                row["update_norm"] = length
        phase.rows.append(row)

    def _end_round(self) -> None:
        """Write the round, if anything was asked in it."""
        if not self._phases:
            return
        for phase in self._phases.values():
            phase.rows.sort(key=lambda row: row["client"])
        now = time.monotonic()
        report = RoundReport(
            server_round=self._server_round,
            num_rounds=self._server_round,
            train=self._phases.get(TRAIN),
            evaluate=self._phases.get(EVALUATE),
            server_metrics={},
            method_metrics={},
            seconds=now - self._began,
            cpu_seconds=self._seconds[TRAIN],
            seconds_evaluate=self._seconds[EVALUATE],
            evaluation_cpu_seconds=self._seconds[EVALUATE],
        )
        self._recorder.record(report)
        self._began, self._phases = now, {}
        self._seconds = dict.fromkeys(self._seconds, 0.0)


def _metrics(content: RecordDict) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a reply, by names with underscores, each name once."""
    seen = set()
    for record_name, record in content.items():
        legacy = isinstance(record, ConfigRecord) and record_name in _LEGACY_METRICS
        if not isinstance(record, MetricRecord) and not legacy:
            continue
        for key, value in record.items():
            name = key.replace("-", "_")
            if isinstance(value, int | float) and name not in seen:
                seen.add(name)
                yield name, float(value)


def _add_accuracy(row: Row, category: str) -> None:
    """Call the one metric of an evaluation that is named after accuracy by that name."""
    named = [
        name
        for name, value in row.items()
        if _ACCURACY & set(name.split("_")) and is_fraction(float(value))
    ]
    if category == EVALUATE and "accuracy" not in row and len(named) == 1:
        row["accuracy"] = row[named[0]]


def _num_bytes(content: RecordDict) -> int:
    """Return the bytes of the arrays."""
    return sum(
        math.prod(array.shape) * np.dtype(array.dtype).itemsize
        for record in content.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    )


def _update_norm(sent: RecordDict, received: RecordDict) -> float | None:
    """Return the norm of what training changed; None where models do not correspond."""
    before, after = (_first_arrays(content) for content in (sent, received))
    if before is None or after is None or len(before) != len(after):
        return None
    with suppress(ValueError, TypeError):
        pairs = [
            (o.numpy(), n.numpy())
            for o, n in zip(before.values(), after.values(), strict=True)
        ]
        if all(old.shape == new.shape for old, new in pairs):
            length = norm(*(np.subtract(new, old, dtype=np.float64) for old, new in pairs))
            return length if math.isfinite(length) else None
    return None


def _first_arrays(content: RecordDict) -> ArrayRecord | None:
    records = (r for r in content.values() if isinstance(r, ArrayRecord))
    return next(records, None)
