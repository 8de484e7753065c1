"""Seeds, partitions and keys that compared experiments have in common."""

from collections.abc import Sequence
from itertools import groupby

from fedsuite.results.groups import SEED, Group, identity
from fedsuite.results.reader import Run

_NONE = "–"


def partition_of(run: Run) -> str:
    """Return the fingerprint of a run's partition; empty where unknown."""
    return str(run.manifest.get("data_fingerprint") or "")


def partition_warnings(groups: Sequence[Group]) -> list[str]:
    """Return a line per seed or partition that not all groups share."""
    if not groups:
        return []
    first = _draws(groups[0])
    disjoint = [group.label for group in groups if not _draws(group) & first]
    partly = [
        group.label for group in groups if _draws(group) & first and _draws(group) != first
    ]
    lines = []
    if disjoint:
        lines.append(
            f"no seed and partition of {groups[0].label} is one of {'; '.join(disjoint)}: "
            "what differs may be the data"
        )
    if partly:
        lines.append(
            f"only some seeds and partitions of {groups[0].label} are those of "
            f"{'; '.join(partly)}: compare their paired differences, not their means"
        )
    return lines + _other_partitions(groups)


def keys_that_differ(groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """Return the value per group of each key that differs, a dash for no value."""
    settings = [identity(group.runs[0]) for group in groups]
    names = sorted({name for values in settings for name in values})
    by_key = {
        name: tuple(str(values.get(name, _NONE)) for values in settings) for name in names
    }
    return {name: values for name, values in by_key.items() if len(set(values)) > 1}


def seeds_text(seeds: Sequence[object]) -> str:
    """Return seeds in words, with ranges such as 0-4."""
    numbers = sorted(seed for seed in seeds if isinstance(seed, int))
    if len(numbers) < len(seeds):
        return ", ".join(map(str, seeds))
    runs = [
        [number for _, number in members]
        for _, members in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def _draws(group: Group) -> frozenset[tuple[object, str]]:
    return frozenset((run.experiment.get(SEED), partition_of(run)) for run in group.runs)


def _other_partitions(groups: Sequence[Group]) -> list[str]:
    """Warn of seeds for which groups did not train on the same partition."""
    by_seed: dict[object, set[str]] = {}
    for seed, partition in (draw for group in groups for draw in _draws(group)):
        by_seed.setdefault(seed, set()).add(partition)
    return [
        f"experiments with seed {seed} have different data fingerprints: they did not "
        "train on the same partition"
        for seed, partitions in sorted(by_seed.items(), key=lambda item: str(item[0]))
        if len(partitions) > 1
    ]
