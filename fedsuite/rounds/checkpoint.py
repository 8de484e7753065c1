"""Checkpoints: one safetensors file a checkpoint, written so that a crash keeps the last.

A checkpoint holds the global arrays, what the method remembers, the metrics so far, and
which stored version of each client's state belongs to it. Random streams are keyed by
round, so there is no random state to keep.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import MetricRecord

from fedsuite.core.errors import RunError, described, one_line
from fedsuite.core.files import (
    atomic_write,
    safetensors_bytes,
    sync_folder,
)
from fedsuite.core.reading import parsed, read_arrays
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import Arrays
from fedsuite.rounds.stage import State

if TYPE_CHECKING:
    from fedsuite.rounds.events import RunState

FORMAT = 6
EARLIER: Mapping[int, str] = {
    1: "0.1.0 until 2026-11-23",
    2: "0.1.0 until 2026-11-24",
    3: "0.1.0 until 2026-11-26",
    4: "0.1.0 on 2026-11-26",
    5: "0.1.0 until 2026-11-27",
}
"""Which fedsuite wrote and reads each earlier format; the dates are those of commits."""

ASIDE = ".aside"
"""Ending of a checkpoint that a person passed over."""
_FILE_NAME = "round-{:06d}.safetensors"
_PATTERN = re.compile(r"round-(\d{6,})\.safetensors")
_HISTORIES = (
    "train_metrics_clientapp",
    "evaluate_metrics_clientapp",
    "evaluate_metrics_serverapp",
)


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after a round.

    Parameters
    ----------
    server_round
        The last round that is finished.
    fingerprint
        Fingerprint of the experiment; a run of another experiment must not go on from it.
    arrays
        Global arrays.
    states
        What the method and the stages of its rounds remember, by name.
    client_versions
        Client to the version of its stored state.
    earlier_versions
        The same of the earlier checkpoints that are kept, oldest first.
    history
        Flower's metric histories: name to round to metrics.
    callbacks
        What callbacks remember, by name.
    """

    server_round: int
    fingerprint: str
    arrays: Arrays
    states: State = field(default_factory=dict)
    client_versions: Mapping[int, str] = field(default_factory=dict)
    earlier_versions: Sequence[Mapping[int, str]] = ()
    history: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)
    callbacks: State = field(default_factory=dict)

    @classmethod
    def capture(
        cls,
        state: "RunState",
        fingerprint: str,
        callbacks: State,
        earlier_versions: Sequence[Mapping[int, str]] = (),
    ) -> "Checkpoint":
        """Return the state of a run between two rounds."""
        return cls(
            server_round=state.server_round,
            fingerprint=fingerprint,
            arrays=to_arrays(state.arrays),
            states=state.strategy.states(),
            client_versions=dict(state.strategy.client_versions),
            earlier_versions=earlier_versions,
            history={
                name: {k: dict(v) for k, v in getattr(state.result, name).items()}
                for name in _HISTORIES
            },
            callbacks=callbacks,
        )

    def restore(self, state: "RunState") -> None:
        """Put a run into the state that was captured.

        Raises
        ------
        RunError
            If it is not of the run's model, or not what the strategy remembers.
        """
        self.check_model(to_arrays(state.arrays))
        state.server_round = self.server_round
        state.arrays = state.result.arrays = to_record(self.arrays)
        strategy = state.strategy
        try:
            strategy.restore_states(self.states)
            for name in _HISTORIES:
                records = {k: MetricRecord(dict(v)) for k, v in self.history[name].items()}
                getattr(state.result, name).update(records)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"the checkpoint of round {self.server_round} does not hold what "
                f"{type(strategy).__name__} remembers: {described(error)}: start a new run"
            ) from error
        strategy.client_versions = dict(self.client_versions)
        strategy.keep_states_of([*self.earlier_versions, self.client_versions])

    def check_model(self, initial: Arrays) -> None:
        """Refuse a checkpoint of another model than the run begins with.

        A run whose clients keep their models begins with none.
        """
        wrong = _unlike(self.arrays, initial) if initial else ""
        if wrong:
            raise RunError(
                f"the checkpoint of round {self.server_round} is of another model, "
                f"{wrong}: put back the code and the files that the run had, or start a "
                "new run"
            )

    def save(self, folder: Path) -> Path:
        """Write the checkpoint into a folder and return its path."""
        tensors = {f"arrays/{name}": array for name, array in self.arrays.items()}
        facts = {
            "format": FORMAT,
            "round": self.server_round,
            "fingerprint": self.fingerprint,
            "arrays": list(self.arrays),
            "states": _packed(self.states, tensors, "states"),
            "client_versions": self.client_versions,
            "earlier_versions": list(self.earlier_versions),
            "history": self.history,
            "callbacks": _packed(self.callbacks, tensors, "callbacks"),
        }
        path = folder / _FILE_NAME.format(self.server_round)
        atomic_write(path, safetensors_bytes(tensors, json.dumps(facts)))
        return path

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint.

        Raises
        ------
        RunError
            If the file cannot be read, is damaged, or is of another format.
        """
        try:
            tensors, note = read_arrays(path)
            facts = parsed(note)
            if facts["format"] != FORMAT:
                raise RunError(f"checkpoint {path} {_of_another(facts['format'])}")
            if facts["round"] != checkpoint_round(path):
                raise ValueError(f"it says that it is of round {facts['round']!r:.40}")
            return cls(
                server_round=checkpoint_round(path),
                fingerprint=facts["fingerprint"],
                arrays={n: tensors[f"arrays/{n}"] for n in facts["arrays"]},
                states=_unpacked(facts["states"], tensors, "states"),
                client_versions=_versions(facts["client_versions"]),
                earlier_versions=[_versions(v) for v in facts["earlier_versions"]],
                history={
                    name: {int(k): v for k, v in facts["history"][name].items()}
                    for name in _HISTORIES
                },
                callbacks=_unpacked(facts["callbacks"], tensors, "callbacks"),
            )
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"cannot read checkpoint {path}: {error}") from error


def _of_another(number: object) -> str:
    """Return what to do about a checkpoint of another format."""
    if type(number) is not int or number < 1:
        raise ValueError(f"format {number!r:.20} is none")
    wrote = f"fedsuite {EARLIER[number]}" if number in EARLIER else "a later fedsuite"
    return (
        f"has format {number}, which {wrote} wrote and reads, and this version reads "
        f"{FORMAT}: resume it with that one"
    )


def _packed(tree: Mapping[str, Any], tensors: Arrays, path: str) -> dict[str, Any]:
    """Return a state as JSON; its arrays go to ``tensors``, under their paths."""
    packed: dict[str, Any] = {"arrays": [], "maps": {}, "values": {}}
    for name, value in tree.items():
        place = f"{path}/{name}"
        if isinstance(value, np.ndarray | np.generic):
            tensors[place] = np.asarray(value)
            packed["arrays"].append(name)
        elif isinstance(value, Mapping):
            packed["maps"][name] = _packed(value, tensors, place)
        else:
            packed["values"][name] = value
    return packed


def _unpacked(packed: Mapping[str, Any], tensors: Arrays, path: str) -> State:
    """Return the state that :func:`_packed` was given."""
    arrays = {name: tensors[f"{path}/{name}"] for name in packed["arrays"]}
    maps = packed["maps"].items()
    inner = {name: _unpacked(tree, tensors, f"{path}/{name}") for name, tree in maps}
    return {**arrays, **inner, **packed["values"]}


def _versions(told: Mapping[str, str]) -> dict[int, str]:
    if not all(isinstance(version, str) for version in told.values()):
        raise TypeError("a version of a client's state is no text")
    return {int(client_id): version for client_id, version in told.items()}


def _unlike(arrays: Arrays, model: Arrays) -> str:
    """Return how arrays differ from the model's; empty where they do not."""
    if missing := sorted(set(model) - set(arrays)):
        return f"for it lacks {one_line(missing[0], 60)}"
    if extra := sorted(set(arrays) - set(model)):
        return f"for it has {one_line(extra[0], 60)}"
    for name, array in arrays.items():
        mine, theirs = (f"{a.dtype} {a.shape}" for a in (array, model[name]))
        if mine != theirs:
            return f"for {one_line(name, 60)} is {mine} and not {theirs}"
    return ""


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest round first."""
    if not folder.is_dir():
        return []
    checkpoints = [path for path in folder.iterdir() if _PATTERN.fullmatch(path.name)]
    return sorted(checkpoints, key=checkpoint_round)


def checkpoint_round(path: Path) -> int:
    """Return the round after which a checkpoint was written."""
    return int(path.stem.removeprefix("round-"))


def load_latest(folder: Path, fingerprint: str) -> Checkpoint | None:
    """Return the newest checkpoint of an experiment, or None if there is none.

    Raises
    ------
    RunError
        If it cannot be read, or belongs to another experiment. The error names an earlier
        checkpoint that is good, and the command that goes on from there.
    """
    paths = list_checkpoints(folder)
    if not paths:
        return None
    try:
        checkpoint = Checkpoint.load(paths[-1])
    except RunError as error:
        raise RunError(f"{error}; {_way_out(folder, paths[:-1])}") from error
    if checkpoint.fingerprint != fingerprint:
        raise RunError(
            f"checkpoint {paths[-1]} belongs to another experiment: resume with the "
            "settings in its run folder's experiment.toml, or start a new run"
        )
    return checkpoint


def _way_out(folder: Path, earlier: Sequence[Path]) -> str:
    """Return what to do about a checkpoint that cannot be read."""
    for path in reversed(earlier):
        try:
            good = Checkpoint.load(path).server_round
        except RunError:
            continue
        command = shlex.join(
            ["fedsuite", "resume", str(folder.parent), "--from-round", str(good)]
        )
        return f"{path.name} is good: `{command}` goes on from there"
    return "no earlier checkpoint is good: put a copy in its place, or start a new run"


def go_back_to(folder: Path, server_round: int) -> None:
    """Make a round's checkpoint the newest; later ones stay, under names with an ending.

    Raises
    ------
    RunError
        If there is no such checkpoint, or it cannot be read. Nothing has changed then.
    """
    paths = {checkpoint_round(path): path for path in list_checkpoints(folder)}
    if server_round not in paths:
        there = ", ".join(map(str, paths)) or "no round"
        raise RunError(
            f"{folder} has no checkpoint of round {server_round}: it has those of {there}"
        )
    Checkpoint.load(paths[server_round])
    for kept_round, path in paths.items():
        if kept_round > server_round:
            path.replace(path.with_name(path.name + ASIDE))
    sync_folder(folder)
