"""Checkpoints: one safetensors file a checkpoint, written so that a crash keeps the last.

A checkpoint holds the global arrays, what the method remembers, the metrics so far, and
which stored version of each client's state belongs to it. Random streams are keyed by
round, so there is no random state to keep.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import MetricRecord
from safetensors import SafetensorError
from safetensors.numpy import load

from fedsuite.core.errors import RunError
from fedsuite.core.files import atomic_write, safetensors_bytes
from fedsuite.messages.records import Arrays, to_arrays, to_record

if TYPE_CHECKING:
    from fedsuite.rounds.events import RunState

FORMAT = 2
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
    method_arrays, method_scalars
        What the method remembers between rounds.
    layer_scalars
        What the strategy's layer remembers.
    extra_arrays
        What server momentum and FedVARP remember.
    client_versions
        Client to the version of its stored state.
    history
        Flower's metric histories: name to round to metrics.
    callbacks
        What callbacks remember: name to JSON value.
    """

    server_round: int
    fingerprint: str
    arrays: Arrays
    method_arrays: Arrays = field(default_factory=dict)
    method_scalars: Mapping[str, Any] = field(default_factory=dict)
    layer_scalars: Mapping[str, Any] = field(default_factory=dict)
    extra_arrays: Arrays = field(default_factory=dict)
    client_versions: Mapping[int, str] = field(default_factory=dict)
    failed_rounds: int = 0
    history: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)
    callbacks: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def capture(
        cls, state: "RunState", fingerprint: str, callbacks: Mapping[str, Any]
    ) -> "Checkpoint":
        """Return the state of a run between two rounds."""
        method_arrays, method_scalars = state.strategy.state()
        layer = state.strategy.layer.state()
        extras = state.strategy.extras.state()
        return cls(
            server_round=state.server_round,
            fingerprint=fingerprint,
            arrays=to_arrays(state.arrays),
            method_arrays=method_arrays,
            method_scalars=method_scalars,
            layer_scalars=layer,
            extra_arrays=extras,
            client_versions=dict(state.strategy.client_versions),
            failed_rounds=state.strategy.judge.failed_rounds,
            history={
                name: {k: dict(v) for k, v in getattr(state.result, name).items()}
                for name in _HISTORIES
            },
            callbacks=callbacks,
        )

    def restore(self, state: "RunState") -> None:
        """Put a run into the state that was captured."""
        state.server_round = self.server_round
        state.arrays = state.result.arrays = to_record(self.arrays)
        strategy = state.strategy
        strategy.restore(self.method_arrays, self.method_scalars)
        strategy.layer.restore(self.layer_scalars)
        strategy.extras.restore(self.extra_arrays)
        strategy.client_versions = dict(self.client_versions)
        strategy.kept_versions = dict(self.client_versions)
        strategy.judge.failed_rounds = self.failed_rounds
        for name in _HISTORIES:
            records = {k: MetricRecord(dict(v)) for k, v in self.history[name].items()}
            getattr(state.result, name).update(records)

    def save(self, folder: Path) -> Path:
        """Write the checkpoint into a folder and return its path."""
        facts = {
            "format": FORMAT,
            "round": self.server_round,
            "fingerprint": self.fingerprint,
            "arrays": list(self.arrays),
            "method_arrays": list(self.method_arrays),
            "method_scalars": dict(self.method_scalars),
            "layer_scalars": dict(self.layer_scalars),
            "extra_arrays": list(self.extra_arrays),
            "client_versions": self.client_versions,
            "failed_rounds": self.failed_rounds,
            "history": self.history,
            "callbacks": self.callbacks,
        }
        tensors = {f"arrays/{name}": array for name, array in self.arrays.items()}
        tensors |= {f"method/{name}": array for name, array in self.method_arrays.items()}
        tensors |= {f"extra/{name}": array for name, array in self.extra_arrays.items()}
        path = folder / _FILE_NAME.format(self.server_round)
        data = safetensors_bytes(tensors, {"fedsuite": json.dumps(facts)})
        atomic_write(path, data)
        return path

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint.

        Raises
        ------
        RunError
            If the file cannot be read, is torn, or is of another format.
        """
        try:
            data = path.read_bytes()
            tensors = load(data)
            facts = json.loads(_metadata(data)["fedsuite"])
            if facts["format"] != FORMAT:
                raise RunError(
                    f"checkpoint {path} has format {facts['format']}, this version reads "
                    f"{FORMAT}: resume it with the fedsuite that wrote it"
                )
            return cls(
                server_round=facts["round"],
                fingerprint=facts["fingerprint"],
                arrays={n: tensors[f"arrays/{n}"] for n in facts["arrays"]},
                method_arrays={n: tensors[f"method/{n}"] for n in facts["method_arrays"]},
                method_scalars=facts["method_scalars"],
                layer_scalars=facts["layer_scalars"],
                extra_arrays={n: tensors[f"extra/{n}"] for n in facts["extra_arrays"]},
                client_versions={int(k): v for k, v in facts["client_versions"].items()},
                failed_rounds=facts["failed_rounds"],
                history={
                    name: {int(k): v for k, v in facts["history"][name].items()}
                    for name in _HISTORIES
                },
                callbacks=facts["callbacks"],
            )
        except (
            OSError,
            SafetensorError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            raise RunError(f"cannot read checkpoint {path}: {error}") from error


def _metadata(data: bytes) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return metadata


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest round first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _PATTERN.fullmatch(path.name)]
    return sorted(found, key=checkpoint_round)


def checkpoint_round(path: Path) -> int:
    """Return the round after which a checkpoint was written."""
    return int(path.stem.removeprefix("round-"))


def load_latest(folder: Path, fingerprint: str) -> Checkpoint | None:
    """Return the newest checkpoint of an experiment, or None if there is none.

    Raises
    ------
    RunError
        If it cannot be read, or belongs to another experiment.
    """
    paths = list_checkpoints(folder)
    if not paths:
        return None
    checkpoint = Checkpoint.load(paths[-1])
    if checkpoint.fingerprint != fingerprint:
        raise RunError(
            f"checkpoint {paths[-1]} belongs to another experiment: resume with the "
            "settings in its run folder's experiment.toml, or start a new run"
        )
    return checkpoint
