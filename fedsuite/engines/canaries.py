"""A run with canaries: clients whose directions are looked for in what was released.

The canaries are clients of the plan of attacks (:mod:`fedsuite.training.attack_plan`): the
strategy draws, clips and sums them as it does all others, and they take part as an update
of the clipping norm. They are as many clients more. The share of clients in a round stays,
and what the others send is a smaller part of the mean.
"""

import numpy as np
from typing_extensions import override

from fedsuite.core.errors import ConfigError
from fedsuite.core.vectors import Vector, norm
from fedsuite.engines.api import run
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import Arrays
from fedsuite.results.privacy import Cosines, NoiseAudit
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.training.attack_plan import canary_direction


def has_central_noise(experiment: Experiment) -> bool:
    """Return whether the server adds noise, without which epsilon is infinite."""
    return bool(experiment["dp-noise-multiplier"] or experiment["target-epsilon"])


def with_canaries(experiment: Experiment, count: int) -> Experiment:
    """Return an experiment with so many canaries beside its clients.

    Raises
    ------
    ConfigError
        If it adapts the clipping norm, has an attack of its own, or cannot have canaries.
    """
    if experiment["dp-adaptive-clipping"]:
        raise ConfigError(
            "key dp-adaptive-clipping = true: canaries would steer the norm: set false and "
            "the dp-clipping-norm that a run came to"
        )
    if experiment["attack"] != "none":
        raise ConfigError(
            f"key attack = {experiment['attack']!r}: canaries take its place: leave it out"
        )
    clients = experiment.num_clients
    total, per_round = clients + count, min(int(experiment["clients-per-round"]), clients)
    if per_round and experiment["dp-sampling"] == "cycles":
        # As many groups take turns.
        per_round = -(-total // -(-clients // per_round))
    elif per_round:
        per_round = round(per_round * total / clients)
    return experiment.replace(
        num_clients=total,
        clients_per_round=per_round,
        attack="canary",
        attackers=count / total,
        attack_strength=experiment["dp-clipping-norm"],
    )


class CanaryWatch(Callback):
    """Measures the cosines of directions with what each round, and all of them, released.

    Parameters
    ----------
    seed
        Seed of the experiment.
    canaries, unused
        Clients whose directions took part, and numbers of directions that nobody sent.
    """

    def __init__(self, seed: int, canaries: range, unused: range) -> None:
        self._seed = seed
        self._canaries, self._unused = canaries, unused
        self._first: Arrays = {}
        self._last: Arrays = {}
        self._by_round: list[Vector] = []
        self._overall = np.empty(0)
        self._dimension = 0

    @override
    def on_start(self, state: RunState) -> None:
        self._first = self._last = _copied(state)

    @override
    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        now, rows = _copied(state), []
        releases = [_change(now, before) for before in (self._last, self._first)]
        for number in (*self._canaries, *self._unused):
            # A large network's directions would not fit into memory together.
            direction = canary_direction(self._seed, number, now)
            rows.append([_cosine(direction, release) for release in releases])
        self._dimension = sum(part.size for part in direction.values())
        of_round, self._overall = np.array(rows).T
        self._by_round.append(of_round)
        self._last = now

    def final(self) -> Cosines:
        """Return the cosines with the change of the final model."""
        return self._cosines(self._overall, self._dimension)

    def largest(self) -> Cosines:
        """Return each direction's largest cosine with a round's change."""
        single = len(self._by_round) == 1
        return self._cosines(
            np.max(self._by_round, axis=0), self._dimension if single else 0
        )

    def _cosines(self, values: Vector, dimension: int) -> Cosines:
        used, unused = np.split(values, [len(self._canaries)])
        return Cosines(used, unused, dimension)


def _copied(state: RunState) -> Arrays:
    return {name: np.array(array) for name, array in to_arrays(state.arrays).items()}


def _change(now: Arrays, before: Arrays) -> dict[str, Vector]:
    return {n: np.subtract(now[n], before[n], dtype=np.float64) for n in now}


def _cosine(direction: dict[str, Vector], release: dict[str, Vector]) -> float:
    """Return the cosine over the direction's arrays; 0 with what did not move."""
    inner = sum(float((part * release[name]).sum()) for name, part in direction.items())
    return inner / (norm(*(release[name] for name in direction)) or 1.0)


def audit_noise(experiment: Experiment, count: int, folder: str) -> NoiseAudit:
    """Run an experiment with canaries, and return what they show.

    Parameters
    ----------
    experiment
        The experiment, with noise at the server.
    count
        Number of canaries, and of directions that nobody sends.
    folder
        Folder for the run's.

    Raises
    ------
    FedsuiteError
        If it cannot have canaries, or the run fails.
    """
    audited = with_canaries(experiment, count)
    total = audited.num_clients
    watch = CanaryWatch(
        audited.seed, range(total - count, total), range(total, total + count)
    )
    own = {"engine": "local", "workers": 1, "report": False, "output-dir": folder}
    values = {**audited.values, **own, "run-name": "auto", "trackers": ""}
    finished = run(values, callbacks=[watch])
    spent = finished.rounds[-1]
    return NoiseAudit(
        watch.final(),
        watch.largest(),
        rounds=len(finished.rounds),
        clients=experiment.num_clients,
        delta=float(spent["delta"]),
        accounted=float(spent["epsilon"]),
    )
