"""Groups of runs that differ in the seed alone, and labels of the groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsuite.core.errors import one_line
from fedsuite.core.keys import Value, plain_text
from fedsuite.experiment.experiment import identifying
from fedsuite.results.reader import Run

SEED = "seed"
METHOD = "method"
PUBLIC = "public-dir"

LONGEST = 1_000
"""Letters of a label."""


@dataclass(frozen=True)
class Group:
    """Runs of one experiment that differ in the seed alone.

    Parameters
    ----------
    label
        Method and keys that distinguish this group.
    runs
        The runs, in the order given.
    """

    label: str
    runs: tuple[Run, ...]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs by experiment, in the order of first runs.

    Seed and local keys (engine, folders, rounds, ...) do not count. Of ``public-dir`` the
    images count, not the path.
    """
    groups: dict[tuple[tuple[str, Value], ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(identity(run).items())), []).append(run)
    labels = _labels([dict(settings) for settings in groups])
    return [
        Group(label, tuple(members))
        for label, members in zip(labels, groups.values(), strict=True)
    ]


def identity(run: Run) -> dict[str, Value]:
    """Return the keys that identify a run's experiment, without the seed."""
    settings = identifying(run.experiment)
    settings.pop(SEED, None)
    if run.experiment.get(PUBLIC):
        data = run.manifest.get("data") or {}
        settings[PUBLIC] = str(data.get("public-fingerprint", ""))[:12]
    return settings


def _labels(experiments: Sequence[dict[str, Value]]) -> list[str]:
    """Return one label per experiment, as short as distinct labels can be.

    A label leaves out a key that only some experiments have, with one value, unless labels
    would then be equal.
    """
    keys = sorted({key for experiment in experiments for key in experiment} - {METHOD})
    values = {
        key: [experiment[key] for experiment in experiments if key in experiment]
        for key in keys
    }
    telling = [key for key in keys if len(set(values[key])) > 1]
    labels = [_label(experiment, telling) for experiment in experiments]
    if len(set(labels)) < len(labels):
        partial = [key for key in keys if len(values[key]) < len(experiments)]
        telling = sorted({*telling, *partial})
        labels = [_label(experiment, telling) for experiment in experiments]
    return labels


def _label(experiment: dict[str, Value], keys: Sequence[str]) -> str:
    method = [str(experiment[METHOD])] if METHOD in experiment else []
    settings = [f"{key}={plain_text(experiment[key])}" for key in keys if key in experiment]
    return one_line(", ".join(method + settings), LONGEST)
