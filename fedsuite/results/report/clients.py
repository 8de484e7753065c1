"""Numbers of the rows of a run's clients, gathered in one pass."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsuite.core.metrics import has_score
from fedsuite.core.tasks import Score
from fedsuite.results.reader import Client, Run
from fedsuite.results.report.values import number
from fedsuite.results.score import score_of

SPREAD = (0, 10, 50, 90, 100)
"""Percentiles of the clients' scores to draw against rounds."""

MOST_COLUMNS = 24
"""Most columns of the clients' tables: a reply may hold a thousand."""

_NOT_SHOWN = frozenset({"round", "phase", "client"})


@dataclass
class ClientRows:
    """Numbers of a run's clients.

    Parameters
    ----------
    names
        The clients, in order.
    last
        Phase to client to the client's last row.
    spreads
        Round to the percentiles ``SPREAD`` of the clients' scores, as they are shown.
    score
        The score.
    """

    names: list[Client] = field(default_factory=list)
    last: dict[str, dict[Client, dict[str, Any]]] = field(default_factory=dict)
    spreads: dict[int, list[float]] = field(default_factory=dict)
    score: Score = field(default_factory=score_of)

    def columns(self, phase: str) -> list[str]:
        """Return the names of the numbers in last rows, most frequent first."""
        counts: dict[str, int] = {}
        for row in self.last.get(phase, {}).values():
            for name, value in row.items():
                if name not in _NOT_SHOWN and number(value) is not None:
                    counts[name] = counts.get(name, 0) + 1
        return sorted(counts, key=lambda name: -counts[name])[:MOST_COLUMNS]

    def scores(self) -> dict[Client, float]:
        """Return the last scores, as they are shown, of the clients whose score counts."""
        by_client = {}
        for client, row in self.last.get("evaluate", {}).items():
            value = _score(row, self.score)
            if value is not None:
                by_client[client] = value
        return by_client

    def num_earlier(self) -> int:
        """Return how many clients' last score is from before the last evaluation."""
        rounds = [
            row["round"]
            for row in self.last.get("evaluate", {}).values()
            if _score(row, self.score) is not None
        ]
        return sum(server_round < max(rounds) for server_round in rounds)


def _score(row: dict[str, Any], score: Score) -> float | None:
    value = number(row.get(score.column))
    if value is None or not score.can_be(value) or not has_score(row, score.column):
        return None
    return score.factor * value


def client_rows(run: Run, score: Score) -> ClientRows:
    """Return the numbers of the clients' rows, read once."""
    rows = ClientRows(score=score)
    names: set[Client] = set()
    pending: dict[int, list[float]] = {}
    for server_round, phase, client, row in _rows(run):
        names.add(client)
        rows.last.setdefault(phase, {})[client] = row
        value = _score(row, score) if phase == "evaluate" else None
        if value is not None:
            if server_round not in pending:
                _close(rows, pending)
            pending.setdefault(server_round, []).append(value)
    _close(rows, pending)
    rows.names = sorted(names, key=lambda c: (isinstance(c, str), c))
    return rows


def _rows(run: Run) -> Iterator[tuple[int, str, Client, dict[str, Any]]]:
    for row in run.client_rows():
        yield row["round"], row["phase"], row["client"], _counting(row)


def _counting(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without scores that do not count."""
    return {name: value for name, value in row.items() if has_score(row, name)}


def _close(rows: ClientRows, pending: dict[int, list[float]]) -> None:
    """Take the percentiles of finished rounds."""
    for server_round, values in pending.items():
        rows.spreads[server_round] = np.percentile(values, SPREAD).tolist()
    pending.clear()
