"""Runs of Standalone that belong to other runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import Value
from fedsuite.engines.api import resume
from fedsuite.engines.api import run as start
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import known_keys, shared_groups
from fedsuite.models.model_settings import DecompositionSettings
from fedsuite.results.groups import SEED
from fedsuite.results.layout import MANIFEST, read_manifest
from fedsuite.results.likeness import partition_of
from fedsuite.results.reader import Run, load_run

STANDALONE = "standalone"

_ABOUT_RUNS = (
    *("seed", "num-rounds", "evaluate-every", "threads", "device"),
    *("score-whole-test", "report"),
)
"""Keys that Standalone copies from every run."""


def standalone_experiment(
    experiment: Mapping[str, Value], changes: Mapping[str, Value] | None = None
) -> Experiment:
    """Return Standalone's experiment for a run's resolved keys.

    Data, partition, model, local training, rounds and seed are the same, but for the
    ``changes``, such as of the learning rate. All clients train in each round.
    """
    groups = shared_groups()
    wanted = {key.name for part in ("data", "model", "training") for key in groups[part]}
    wanted |= {*_ABOUT_RUNS, *(key.name for key in DecompositionSettings.KEYS)}
    taken = {
        name: value
        for name, value in experiment.items()
        if name in wanted or _of_data_or_model(name)
    }
    changed = dict(changes or {})
    if changed.get("method", STANDALONE) != STANDALONE:
        raise ConfigError(f"key method = {changed['method']!r}: the run is of Standalone")
    changed["method"] = STANDALONE
    return Experiment.from_values({**taken, **changed}, tuple(changed))


def standalone_runs(
    runs: Sequence[Run],
    given: Sequence[Run] = (),
    changes: Mapping[str, Value] | None = None,
) -> dict[Path, Run]:
    """Return each run's run of Standalone, by path.

    Parameters
    ----------
    runs
        The runs.
    given
        Runs of Standalone to choose from. None is made if there are any.
    changes
        As for :func:`standalone_experiment`, for new runs.

    Raises
    ------
    RunError
        If no given run fits, or a new run fails.
    """
    return {
        run.path: _choose(run, given) if given else find_or_make(run, changes)
        for run in runs
    }


def find_or_make(run: Run, changes: Mapping[str, Value] | None = None) -> Run:
    """Return the run of Standalone beside a run's folder; make or resume it if need be.

    Its name holds a fingerprint of its experiment, its rounds and the partition.
    """
    if run.experiment["method"] == STANDALONE and not changes:
        return run
    experiment = standalone_experiment(run.experiment, changes)
    partition = run.manifest.get("data_fingerprint")
    decisive = [experiment.fingerprint, experiment["num-rounds"], partition]
    digest = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()
    folder = run.path.resolve().parent / f"{STANDALONE}-{digest[:16]}"
    if not (folder / MANIFEST).is_file():
        values = {"output-dir": str(folder.parent), "run-name": folder.name}
        found: Run = start({**experiment.values, **values, "engine": "local"})
    elif read_manifest(folder)["status"] == "finished":
        found = load_run(folder)
    else:
        found = resume(folder)
    if found.manifest.get("data_fingerprint") != partition:
        raise RunError(
            f"{run.path}: its partition cannot be made again: data or fedsuite have "
            "changed since; run it again"
        )
    return found


def _choose(run: Run, given: Sequence[Run]) -> Run:
    for alone in given:
        if alone.experiment.get("method") != STANDALONE:
            raise RunError(f"{alone.path} is no run of Standalone, but of another method")
    for alone in given:
        same_seed = alone.experiment.get(SEED) == run.experiment.get(SEED)
        if same_seed and partition_of(alone) == partition_of(run):
            return alone
    raise RunError(
        f"{run.path}: no run of Standalone with its seed and partition was given: add one, "
        "or leave out --standalone to have it made"
    )


def _of_data_or_model(name: str) -> bool:
    owners = known_keys()[name].owners if name in known_keys() else ()
    return any(owner.startswith(("partitioner ", "model ")) for owner in owners)
