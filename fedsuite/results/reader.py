"""Reading of a run's folder, finished or not."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.errors import RunError, one_line
from fedsuite.core.keys import Value
from fedsuite.core.metrics import (
    counted_in,
    has_score,
    is_accuracy,
    is_fraction,
    of_clients,
    tail_words,
)
from fedsuite.core.reading import is_number
from fedsuite.core.tasks import ACCURACY, Score, score_of_column
from fedsuite.data.shift_report import ClientShift
from fedsuite.messages.records import EVALUATE
from fedsuite.results import layout
from fedsuite.results.score import main_score

Client = int | str
"""A client's identity in the tables: a partition id, a node id, or a registered name."""


@dataclass(frozen=True)
class Scores:
    """Clients' accuracies (fractions), or other scores, at one evaluation.

    Parameters
    ----------
    server_round
        Round of the evaluation.
    of
        Accuracy by client, of those whose accuracy counts.
    num_asked
        Number of clients that were asked and have such rows.
    score
        The score: its unit, and which direction is better.
    """

    server_round: int
    of: Mapping[Client, float]
    num_asked: int
    score: Score = ACCURACY

    @property
    def percent(self) -> list[float]:
        """The scores as they are shown: fractions in per cent."""
        return [self.score.factor * number for number in self.of.values()]

    def share(self) -> float:
        """Return the share of those asked that have a score."""
        return len(self.of) / max(self.num_asked, 1)

    @property
    def short(self) -> str:
        """How many clients have a score, ``5 of 8 clients``; empty where all have one."""
        return of_clients(len(self.of), self.num_asked)


@dataclass(frozen=True)
class Run:
    """A run, read from its folder; the many rows per client are read when needed.

    Parameters
    ----------
    path
        Folder of the run.
    experiment
        The full resolved experiment by kebab-case key.
    manifest
        Versions, seed, fingerprints, times, status.
    rounds
        One row per round, in the order written.
    summary
        The final report; None before the run's end.
    """

    path: Path
    experiment: dict[str, Value]
    manifest: dict[str, Any]
    rounds: tuple[dict[str, Any], ...]
    summary: dict[str, Any] | None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read the folder of a run; see :func:`load_run`."""
        folder = Path(path)
        manifest = layout.read_manifest(folder)
        return cls(
            path=folder,
            experiment=layout.read_experiment(folder),
            manifest=manifest,
            rounds=tuple(layout.read_table(folder, layout.ROUNDS)),
            summary=layout.read_optional(folder / layout.SUMMARY),
        )

    def __repr__(self) -> str:
        told = ", ".join(f"{value}" for value in self._in_short().values() if value)
        return f"<Run {one_line(self.path)}: {one_line(told)}>"

    def _repr_html_(self) -> str:
        """Return the run as a small table, for notebooks."""
        rows = {"run": str(self.path), **self._in_short()}
        cells = (
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(one_line(value))}</td></tr>"
            for name, value in rows.items()
            if value
        )
        return f"<table>{''.join(cells)}</table>"

    def _in_short(self) -> dict[str, str]:
        """Return what the run is and how it ended, in words."""
        values, last = self.experiment, self.rounds[-1] if self.rounds else {}
        score = main_score(values)
        num_scored = last.get(f"{score.column}_clients", values.get("num-clients"))
        worst = tail_words("worst", 10, int(num_scored or 0))
        numbers = [
            (words, last.get(f"{score.column}_{ending}"))
            for words, ending in (("mean", "mean"), (worst, "worst10"))
        ]
        scores = [
            f"{words} {score.shown(number)}"
            for words, number in numbers
            if is_number(number) and score.can_be(number)
        ]
        status = str(self.manifest["status"])
        return {
            "method": self.title,
            "clients": f"{values.get('num-clients')} clients",
            "rounds": f"round {self.rounds_done}, {status}",
            "score": f"{score.title}: {', '.join(scores)}" if scores else "",
        }

    @property
    def title(self) -> str:
        """Its method on its data set; of a Flower app's report the app's name alone."""
        method, dataset = self.experiment.get("method"), self.experiment.get("dataset")
        return f"{method} on {dataset}" if dataset else str(method)

    @property
    def rounds_done(self) -> str:
        """The last round, and of how many where the experiment says so: "2 of 5"."""
        planned = self.experiment.get("num-rounds")
        return f"{self.last_round} of {planned}" if planned else str(self.last_round)

    @property
    def last_round(self) -> int:
        """The last recorded round, 0 for none."""
        return max((int(row["round"]) for row in self.rounds), default=0)

    def column(self, key: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the rounds with a number under ``key``, and the numbers."""
        pairs = [
            (row["round"], row[key]) for row in self.rounds if row.get(key) is not None
        ]
        rounds, values = zip(*pairs, strict=True) if pairs else ((), ())
        return np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64)

    def number_of_data(self, name: str) -> float:
        """Return a number that the manifest says of the data, 0 where it says none."""
        value = (self.manifest.get("data") or {}).get(name)
        return float(value) if is_number(value) else 0.0

    def clients(self) -> list[dict[str, Any]]:
        """Return all rows of ``clients.jsonl``: one per client, phase and round."""
        return list(self.client_rows())

    def client_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of ``clients.jsonl``; an accuracy that is no fraction is None.

        No run of today writes such a one, but the folder may be somebody else's.
        """
        for row in self._rows(layout.CLIENTS):
            for name, value in row.items():
                if is_accuracy(name) and not _is_fraction(value):
                    row[name] = None
            yield row

    def events(self) -> list[dict[str, Any]]:
        """Return all rows of ``events.jsonl``: rejected replies and warnings."""
        return list(self._rows(layout.EVENTS))

    def _rows(self, name: str) -> Iterator[dict[str, Any]]:
        return layout.read_table(self.path, name)

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients in order; empty where rows have their numbers."""
        names = self.manifest.get(layout.CLIENT_NAMES)
        if names is None:
            sites = str(self.experiment.get("sites") or "")
            names = [name.strip() for name in sites.split(",")] if sites else []
        return tuple(map(str, names))

    def named(self, client: Client) -> Client:
        """Return a client as its rows call it: by its name, if it has one."""
        names = self.client_names
        is_number = isinstance(client, int) and 0 <= client < len(names)
        return names[int(client)] if is_number else client

    def client_values(
        self, phase: str, key: str, server_round: int | None = None
    ) -> dict[Client, float]:
        """Return one number per client of one round.

        Parameters
        ----------
        phase
            ``"train"``, ``"evaluate"``, or ``"new"`` of clients that never train.
        key
            Name of the number, such as ``"accuracy"`` (a fraction) or ``"loss"``.
        server_round
            Round to read; None for the last round with such numbers.
        """
        history = self.client_history(phase, key)
        return history.get(
            max(history, default=0) if server_round is None else server_round, {}
        )

    def client_history(self, phase: str, key: str) -> dict[int, dict[Client, float]]:
        """Return one number per client that has it, by round."""
        history: dict[int, dict[Client, float]] = {}
        for row in self.client_rows():
            if row["phase"] == phase and has_score(row, key):
                history.setdefault(row["round"], {})[row["client"]] = float(row[key])
        return history

    def scores(
        self, column: str = "accuracy", last: int = 1, phase: str = EVALUATE
    ) -> list[Scores]:
        """Return the last evaluations, oldest first; those too at which nobody has a score.

        Parameters
        ----------
        column
            The score, such as ``"whole_test_accuracy"``. A number that it cannot be is no
            score, and of a column that is not declared one that is no fraction.
        last
            Number of evaluations, at most.
        phase
            ``"evaluate"``, or ``"new"`` of the clients that never train.
        """
        by_round: dict[int, dict[Client, float]] = {}
        num_asked: dict[int, int] = {}
        score = score_of_column(column) or ACCURACY
        for row in self.client_rows():
            if row["phase"] != phase or column not in row:
                continue
            server_round = row["round"]
            if server_round not in by_round:
                by_round[server_round], num_asked[server_round] = {}, 0
                # Rounds come in their order: earlier ones are no longer wanted.
                for earlier in list(by_round)[:-last]:
                    del by_round[earlier]
            if row.get(counted_in(column)) != 0:
                num_asked[server_round] += 1
                if is_number(row[column]) and score.can_be(row[column]):
                    by_round[server_round][row["client"]] = float(row[column])
        is_own = column.startswith("validation_") or column == score.column
        own = column if is_own else "accuracy"
        before = "" if phase == EVALUATE else f"{phase}_"
        for row in self.rounds:
            server_round = row["round"]
            # Of a round without a good reply nobody knows what the clients have.
            nobody = row.get(f"{before}accuracy_clients") == 0
            which = "accuracy" if nobody else own
            row_asked = row.get(f"{before}{which}_clients_asked")
            if row_asked is not None and (num_asked or column == "accuracy"):
                num_asked[server_round] = max(num_asked.get(server_round, 0), row_asked)
                by_round.setdefault(server_round, {})
        rounds = sorted(by_round)[-last:]
        return [Scores(r, by_round[r], num_asked[r], score) for r in rounds]

    def client_means(self, keys: Iterable[str]) -> dict[str, dict[int, float]]:
        """Return means over clients by round, each client counting once.

        Parameters
        ----------
        keys
            Phase and column, such as ``"evaluate_accuracy"``; every key is returned. The
            means of the same names in ``rounds.jsonl`` weight clients by examples.
        """
        phase_and_column = {key: key.partition("_")[::2] for key in keys}
        values: dict[str, dict[int, list[float]]] = {key: {} for key in phase_and_column}
        for row in self.client_rows():
            for key, (phase, column) in phase_and_column.items():
                if row["phase"] == phase and has_score(row, column):
                    values[key].setdefault(row["round"], []).append(float(row[column]))
        return {
            key: {server_round: float(np.mean(v)) for server_round, v in by_round.items()}
            for key, by_round in values.items()
        }

    def class_counts(self, part: str) -> NDArray[np.int64] | None:
        """Return samples per client and class of the part ``"train"`` or ``"test"``.

        Shape (clients, classes); None if the run recorded no partition.
        """
        counts = self._partition.get(part)
        if counts is None:
            return None
        try:
            table = np.array(counts, dtype=np.int64)
        except (ValueError, TypeError, OverflowError):
            table = np.array(0)
        if table.ndim != 2:
            path = self.path / layout.PARTITION
            raise RunError(f"{path}: {part} is no table of counts; the file is damaged")
        return table

    @cached_property
    def _partition(self) -> dict[str, Any]:
        return layout.read_optional(self.path / layout.PARTITION) or {}

    def shifts(self) -> tuple[ClientShift, ...]:
        """Return each client's measured covariate shift; empty without such a shift."""
        entries = self._partition.get("shift", [])
        try:
            shifts = tuple(ClientShift(**shift) for shift in entries)
            # What is no number here raises as well.
            np.array([list(shift.values()) for shift in entries], dtype=np.float64)
        except (TypeError, ValueError, AttributeError) as error:
            path = self.path / layout.PARTITION
            raise RunError(f"{path}: its shifts cannot be read: {error}") from error
        return shifts


def _is_fraction(value: object) -> bool:
    """Return whether what stands in a file is a number from 0 to 1."""
    return isinstance(value, int | float) and is_fraction(value)


def load_run(path: str | Path) -> Run:
    """Read the folder of a run that has ended, was killed, or goes on.

    Raises
    ------
    RunError
        If the folder holds no run, or a file is missing or damaged.
    """
    return Run.read(path)
