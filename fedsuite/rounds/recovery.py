"""The way back from a poisoned round, to the last model that clients could train from.

One reply may move the model so far that nobody can train from it: all losses of the next
round are infinite, and the clients who say so are the honest ones. A step of the server is
*doubtful* where it is much longer than any before. Behind a doubtful step the server keeps
what it had, until the next round shows that clients can train from the new model. If most
cannot, the old model takes the new one's place, with what the method, momentum, FedVARP and
the guard remembered then.

What clients keep stays as they have it, because an older version may be gone. A control
variate's mean on the server is then a round behind the clients' own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord
from typing_extensions import override

from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import Arrays
from fedsuite.rounds.changes import length
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.stage import Stage, State

FAR = 10.0
"""Longest steps so far beyond which a step is doubtful, and medians beyond which an update
is suspected."""

EXPLODED = 100.0
"""Largest median losses so far, of at least 1, beyond which a client cannot train.

A loss that was tiny grows a hundredfold in honest runs too.
"""

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
        Client to why its reply of the doubtful round is suspected.
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
    """Judges the server's steps, and keeps what it had before a doubtful one.

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
        self._longest = self._doubtful = self._loss = 0.0

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
        losses = _losses(report)
        limit = EXPLODED * max(self._loss, 1.0)
        exploded = [loss for loss in losses if self._loss and loss > limit]
        return len(failed) + len(exploded)

    def must_go_back(self, report: PhaseReport) -> bool:
        """Return whether most clients cannot train from the model of a doubtful step."""
        return self.kept is not None and 2 * self.who_cannot_train(report) > max(
            report.num_asked, 1
        )

    def check(self, report: PhaseReport) -> None:
        """Raise QuorumMissed if most clients cannot train from a doubtful step's model."""
        if self.must_go_back(report):
            raise QuorumMissed(Kind.NO_TRAINING, 0, *_NO_TRAINING)

    def is_doubtful(self, old: Arrays, new: Arrays, report: PhaseReport) -> bool:
        """Take note of a step that the model takes; return whether it is doubtful."""
        if self._now is None:
            return False
        losses = _losses(report)
        if losses:
            self._loss = max(self._loss, float(np.median(losses)))
        # Clients trained from where the last step led.
        self._longest = max(self._longest, self._doubtful)
        self.kept, self._doubtful = None, 0.0
        step = length(new, old)
        if step <= FAR * (self._longest or max(length(old, {}), 1.0)):
            self._longest = max(self._longest, step)
            return False
        self._doubtful = step
        self.kept = replace(self._now, suspects=_suspects(report))
        return True

    def go_back(self, server_round: int, report: PhaseReport) -> tuple[Kept, str]:
        """Return what the server had before the doubtful step, and the story in a line."""
        assert self.kept is not None
        kept, self.kept, self._doubtful = self.kept, None, 0.0
        self.model = kept.model
        names = {k: report.names.get(k, k) for k in kept.suspects}
        suspects = "; ".join(
            f"client {names[k]}: {why}" for k, why in kept.suspects.items()
        )
        for client_id, why in kept.suspects.items():
            report.suspected.append(Rejection(server_round, client_id, Kind.SUSPECTED, why))
        return kept, (
            f"{self.who_cannot_train(report)} of {report.num_asked} clients cannot train "
            f"from the model of round {kept.server_round + 1}: {kept.name} takes its "
            "place. They are not to blame. Suspected: "
            f"{suspects or 'nobody, all updates were alike'}"
        )

    @override
    def state(self) -> State:
        numbers = [self._longest, self._doubtful, self._loss]
        if self.kept is None:
            return {"numbers": numbers}
        kept = {
            "round": self.kept.server_round,
            "model": to_arrays(self.kept.model),
            "states": self.kept.states,
            "suspects": {str(k): why for k, why in self.kept.suspects.items()},
        }
        return {"numbers": numbers, "kept": kept}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._longest, self._doubtful, self._loss = state["numbers"]
        self.kept = None
        if kept := state.get("kept"):
            suspects = {int(k): why for k, why in kept["suspects"].items()}
            model = to_record(kept["model"])
            self.kept = Kept(kept["round"], model, kept["states"], suspects)


def _losses(report: PhaseReport) -> list[float]:
    """Return the clients' losses, by the first of the usual names that they have."""
    return next(filter(None, map(report.column, _LOSSES)), [])


def _suspects(report: PhaseReport) -> dict[int, str]:
    """Return the clients whose updates were far longer than the others', or the longest."""
    ratios = report.of_clients("norm_ratio")
    far = {k: ratio for k, ratio in ratios.items() if ratio > FAR}
    if not far and ratios and max(ratios.values()) > min(ratios.values()):
        longest = max(ratios, key=ratios.__getitem__)
        far = {longest: ratios[longest]}
    return {k: f"its update was {ratio:.3g} medians long" for k, ratio in far.items()}
