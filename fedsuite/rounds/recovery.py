"""The way back from a poisoned round, to the last model that clients could train from.

Lies may move the model so far that nobody can train from it: all losses are infinite, far
above those of the first round, or above them for some rounds. The clients who say so are
the honest ones. Where a client's update was much longer than the others', the server keeps
what it had before that step. It goes on keeping it while the clients' losses are above
those of the first round. If most clients cannot train any more, the old model takes the new
one's place, with what the method, momentum, FedVARP and the guard remembered then. The
clients whose updates were the longest sit out for a while, each time for twice as long.
Nobody else is to blame, and no round is counted as failed.

What clients keep stays as they have it, because an older version may be gone. A control
variate's mean on the server is then a few rounds behind the clients' own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from typing_extensions import override

from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.stage import Stage, State

FAR = 3.0
"""Medians beyond which an update is suspected, if it is half as long as the longest."""

EXPLODED = 3.0
"""First losses, of at least 1, beyond which a client cannot train."""

PATIENCE = 5
"""Rounds in a row with losses above the first, after which no client can train."""

_NO_TRAINING = (
    "most clients cannot train from the model that they got",
    "half of the clients, who must be able to train from the model",
)
"""Why such a round fails, and what it lacks."""

_LOSSES = ("loss", "train_loss", "loss_after", "loss_before")


@dataclass(frozen=True)
class Kept:
    """What the server had before a round.

    Parameters
    ----------
    server_round
        The round after which it had that; 0 is the initial model.
    model
        The whole model.
    states
        What the method, momentum, FedVARP and the guard remembered, by name.
    suspects
        Client to why its reply to the step that followed is suspected.
    """

    server_round: int
    model: ArrayRecord
    states: State
    suspects: Mapping[int, str]

    @property
    def name(self) -> str:
        """The model, in words."""
        return (
            f"that of round {self.server_round}" if self.server_round else "the first one"
        )


class Recovery(Stage):
    """Keeps what the server had before a step that a far longer update was in.

    Attributes
    ----------
    model
        The model that comes back in this round; None of none.
    """

    name: ClassVar[str] = "recovery"

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.model: ArrayRecord | None = None
        self._now: Kept | None = None
        self._first_loss = 0.0
        self._rounds_above = 0
        self._resting: dict[int, int] = {}
        self._times: dict[int, int] = {}

    def begin(self, now: Kept | None) -> None:
        """Hear that a round begins.

        Parameters
        ----------
        now
            What the server has now, which must not change later; None for a method whose
            clients do not all train one model.
        """
        self.model = None
        self._now = now

    def who_cannot_train(self, report: PhaseReport) -> int:
        """Return how many of a round's clients cannot train from the model."""
        not_finite = (r for r in report.rejections if r.kind is Kind.NOT_FINITE)
        failed = {r.client_id for r in not_finite} - {None}
        failed = failed.union(*(report.left_out.get(name, ()) for name in _LOSSES))
        times = EXPLODED if self._rounds_above < PATIENCE else 1.0
        limit = times * max(self._first_loss, 1.0)
        exploded = [loss for loss in _losses(report) if self._first_loss and loss > limit]
        return len(failed) + len(exploded)

    def must_go_back(self, report: PhaseReport) -> bool:
        """Return whether most clients cannot train, and an older model is kept."""
        return self.kept is not None and 2 * self.who_cannot_train(report) > max(
            report.num_asked, 1
        )

    def check(self, report: PhaseReport) -> None:
        """Raise QuorumMissed if most clients cannot train, and the run must go back."""
        if self.must_go_back(report):
            raise QuorumMissed(Kind.NO_TRAINING, 0, *_NO_TRAINING)

    def note(self, report: PhaseReport) -> None:
        """Take note of the replies of a round whose step counts."""
        if self._now is None:
            return
        losses = _losses(report)
        loss = float(np.median(losses)) if losses else 0.0
        self._first_loss = self._first_loss or loss
        suspects = _suspects(report)
        fine = loss <= max(self._first_loss, 1.0)
        self._rounds_above = 0 if fine else self._rounds_above + 1
        if self.kept is None or fine:
            self.kept = replace(self._now, suspects=suspects) if suspects else None

    def go_back(
        self, server_round: int, report: PhaseReport, rest: int
    ) -> tuple[Kept, str]:
        """Return what the server had before a suspected step, and the story in a line.

        Parameters
        ----------
        server_round, report
            The round in which clients cannot train.
        rest
            Number of rounds that suspects sit out at the first time.
        """
        assert self.kept is not None
        kept, self.kept, self._rounds_above = self.kept, None, 0
        self.model = kept.model
        stories = []
        for client_id, why in kept.suspects.items():
            report.suspected.append(Rejection(server_round, client_id, Kind.SUSPECTED, why))
            until = server_round + rest * 2 ** self._times.get(client_id, 0)
            self._times[client_id] = self._times.get(client_id, 0) + 1
            self._resting[client_id] = until
            name = report.names.get(client_id, client_id)
            sits_out = f", and it sits out until round {until}" if rest else ""
            stories.append(f"client {name}: {why}{sits_out}")
        return kept, (
            f"{self.who_cannot_train(report)} of {report.num_asked} clients cannot train "
            f"from the model that they got: {kept.name} takes its place. They are not to "
            f"blame. Suspected: {'; '.join(stories)}"
        )

    def awake(self, client_ids: Sequence[int], server_round: int) -> Sequence[int]:
        """Return the clients that do not sit out; all, if most of them would."""
        if not self._resting:
            return client_ids
        awake = [k for k in client_ids if self._resting.get(k, 0) < server_round]
        return awake if 2 * len(awake) > len(client_ids) else client_ids

    @override
    def state(self) -> State:
        resting = {str(k): [last, self._times[k]] for k, last in self._resting.items()}
        losses = {"first-loss": self._first_loss, "rounds-above": self._rounds_above}
        remembered = {**losses, "resting": resting}
        if self.kept is None:
            return remembered
        kept = {
            "round": self.kept.server_round,
            "model": to_arrays(self.kept.model),
            "states": self.kept.states,
            "suspects": {str(k): why for k, why in self.kept.suspects.items()},
        }
        return {**remembered, "kept": kept}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._first_loss = float(state["first-loss"])
        self._rounds_above = int(state["rounds-above"])
        self._resting = {int(k): int(last) for k, (last, _) in state["resting"].items()}
        self._times = {int(k): int(times) for k, (_, times) in state["resting"].items()}
        self.kept = None
        if kept := state.get("kept"):
            suspects = {int(k): why for k, why in kept["suspects"].items()}
            model = to_record(kept["model"])
            self.kept = Kept(kept["round"], model, kept["states"], suspects)


def _losses(report: PhaseReport) -> list[float]:
    """Return the clients' losses, by the first of the usual names that they have."""
    return next(filter(None, map(report.column, _LOSSES)), [])


def _suspects(report: PhaseReport) -> dict[int, str]:
    """Return the clients whose updates were far longer than the others'."""
    ratios = report.of_clients("norm_ratio")
    least = max(FAR, max(ratios.values(), default=0.0) / 2)
    far = {k: ratio for k, ratio in ratios.items() if ratio > least}
    return {k: f"its update was {ratio:.3g} medians long" for k, ratio in far.items()}
