"""Which other value each key is given, what stands beside it, and which keys are listed."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, Value, With
from fedsuite.core.registry import METHODS
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import keys_of, known_keys, owners, shared_keys
from fedsuite.strategies import load_strategy
from tests.effects.runs import base

LISTED: Mapping[str, str] = {
    "method": "every case is of one method",
    "dataset": "the others' files are large: their tests make their own",
    "data-dir": "says where the files lie",
    "scaling": "digits are 0..1, as unit asks for: tests/data shows it on other images",
    "sites": "needs data of sites: tests/running/test_site_runs.py",
    "site-dirs": "needs data of sites: tests/running/test_site_runs.py",
    "only-statistics": "trains nothing: tests/running/test_site_tables.py",
    "site-rows": "needs data of sites: tests/running/test_site_runs.py",
    "suspect-rounds": "acts after a poisoned round: tests/rounds/test_recovery.py",
    "public-dir": "needs a folder of images: tests/running/test_public_runs.py",
    "initial-model": "needs another run: tests/running/test_initial_model.py",
    "engine": "says where it runs: to the same bits by tests/engines",
    "workers": "says where it runs: to the same bits by tests/engines",
    "threads": "says how fast it runs; may change the last bits",
    "device": "says where it runs: tests/test_gpu.py, on a machine that has one",
    "client-memory": "says where clients' state lies meanwhile: tests/clients",
    "connect-timeout": "the local engine waits for nobody: tests/engines",
    "round-timeout": "the local engine waits for nobody: tests/engines",
    "output-dir": "says where what is written lies",
    "run-name": "says where what is written lies",
    "state-dir": "says where what clients keep lies",
    "resume": "goes on with another run: tests/rounds/test_checkpoint.py",
    "metrics-port": "opens a port and changes nothing else: tests/callbacks",
    "metrics-host": "opens a port and changes nothing else: tests/callbacks",
    "report": "writes a page and changes nothing else: tests/results/test_report.py",
}
"""Keys that do not change what a run of digits does, by design or here, and why."""

SAME: Mapping[tuple[Value, Value], str] = {
    ("fedsgd", "freeze"): "of a client's one step what travels is the same",
    ("fedsgd", "discard"): "beside freeze, for the same reason",
    ("fedbuff", "nearest"): "its rounds here have two replies: their median is their mean",
    ("cyclic", "alie"): "liars imitate the others of their round, and there are none",
    ("cyclic", "ipm"): "for the same reason",
    ("cyclic", 0.7): "as attackers: who lies in its few rounds is the same",
    ("cyclic", "persist"): "a client's second turn here begins a period of coefficients",
    ("fd", 5.0): "as attack-strength: flipped probabilities are refused at any",
}
"""Values of a method that change nothing by its mathematics, and why."""

OTHERS: Mapping[str, tuple[Value, ...]] = {
    "atoms": (4,),
    "attack-strength": (5.0,),
    "attackers": (0.7,),
    "best-model-metric": ("accuracy_mean",),
    "cffl-threshold": (1.0,),
    "cfd-server-model": ("linear",),
    "client-models": (
        ",".join(f"mlp:hidden-width=8:hidden-layers={n}" for n in (2, 1, 3)),
    ),
    "class-weights": ("balanced",),
    "client-settings": ("1: learning-rate=0.02",),
    "classes-per-client": (4,),
    "clip-gradient-norm": (0.01,),
    "compress-down": ("signs",),
    "compress-up": ("top-k",),
    "coefficient-period": (3,),
    "dirichlet-min-size": (420,),
    "discriminator-widths": ("16",),
    "ditto-local-epochs": (2,),
    "upload-noise-multiplier": (0.1,),
    "devices": ("hospitals",),
    "dp-noise-multiplier": (0.1,),
    "target-epsilon": (50.0,),
    # Of digits `classification` is what `auto` is.
    "task": ("regression", "multi-label"),
    "dp-epsilon-max": (0.1, 1000.0),
    "early-stop-metric": ("clients_trained",),
    "early-stop-patience": (1,),
    "evaluation-only": ("1",),
    "fedfv-alpha": (1.0,),
    "fedpara-gamma": (1.0,),
    "personal-epochs": (2,),
    "pfedck-clusters": (1,),
    "fedsac-interval": (1,),
    "interval-ends": ("1, 2",),
    "liars": (0.0,),
    "max-client-weight": (0.2,),
    "over-select": (2.0,),
    "loss": ("focal",),
    "lp-proj-inner-steps": (2,),
    "max-examples": (1.0,),
    "max-failed-rounds": (1,),
    "max-share-ratio": (1.0,),
    "max-update-norm": (0.001,),
    # With this many a client is refused, also where all weigh alike.
    "most-examples": (50,),
    "model": ("linear",),
    "round-deadline": (0.001,),
    "selection": ("round-robin", "oort"),
    "selection-candidates": (5,),
    "selection-ratio": (1.0,),
    "stop-at-seconds": (0.001,),
    "num-clients": (4,),
    "partitioner": ("iid", "shards"),
    "pool-size": (1,),
    "public-size": (50,),
    "quantisation-bits": (16,),
    "quorum": (3,),
    "rank-every": (1,),
    "scores": ("macro-f1",),
    "server-beta1": (0.5,),
    "test-fraction": (0.3,),
    "theta": (90.0,),
    "trackers": ("tensorboard",),
    "travels": ("3.*",),
}
"""Other values of keys where the next one would say little."""

_CONVOLUTIONS: Mapping[str, Value] = {
    "model": "cnn-shallow",
    "hidden-width": 200,
    "hidden-layers": 2,
    "partitioner": "power-law",
    "data-fraction": 0.1,
    "test-fraction": 0.05,
}

FACTORED: Mapping[str, Value] = {**_CONVOLUTIONS, "decomposition": True}
"""A small network for the wrapper of filter decomposition, and few rows."""

NO_WRAPPER: Mapping[str, Value] = {}

WRAPPED: Mapping[str, Value] = {
    **FACTORED,
    "coefficient-period": 2,
    "local-coefficients": "freeze",
}
"""The wrapper of filter decomposition at work: fast rounds beside slow ones."""

BESIDE: Mapping[str, Mapping[str, Value]] = {
    "cfd-bits": {"cfd-target": "prob-mean"},
    "checkpoint-every": {"num-rounds": 1},
    "classes-per-client": {"num-clients": 5},
    # Three rounds: where one client trains in each, all have.
    "client-settings": {"optimizer": "sgd", "num-rounds": 3},
    "clipping-range": {"secure-aggregation": "unmasked"},
    "coefficient-period": {"num-rounds": 3},
    "decomposition": _CONVOLUTIONS,
    "decomposition-average": {"atoms": 25},
    "dp-count-noise": {"dp-noise-multiplier": 0.1, "dp-adaptive-clipping": True},
    "dp-clipping-quantile": {"dp-noise-multiplier": 0.1, "dp-adaptive-clipping": True},
    "dp-clipping-rate": {"dp-noise-multiplier": 0.1, "dp-adaptive-clipping": True},
    "dp-sampling": {"dp-noise-multiplier": 0.1, "clients-per-round": 2},
    "early-stop-metric": {"num-rounds": 3},
    "early-stop-patience": {"num-rounds": 3},
    "fedbuff-discount": {"num-rounds": 6},
    # Factored layers are steep: pFedMe's steps leave at the usual rate.
    "fedpara": {"optimizer": "sgd", "learning-rate": 0.03},
    "fedpara-gamma": {"hidden-width": 64},
    "fedfv-history": {"clients-per-round": 2},
    "fedfv-tau": {"clients-per-round": 2, "num-rounds": 4},
    "learning-rate": {"optimizer": "sgd"},
    "learning-rate-decay": {"optimizer": "sgd", "learning-rate": 0.05},
    "local-coefficients": {"num-rounds": 4},
    "local-epochs": {"local-steps": 0},
    "max-failed-rounds": {"drop-out": 1.0},
    # Steps are not quite in proportion to rows where mini-batches are many.
    "max-share-ratio": {"batch-size": 16, "num-clients": 5},
    # FedDISCO gives some clients no weight, and a rule needs three with some.
    "mix": {"num-clients": 4},
    # One step, as of few rows, begins with none.
    "momentum": {"batch-size": 8},
    # Seed 0 draws anew what all seeds share otherwise.
    "fresh-test-split": {"seed": 1},
    # At a rate for whole networks the losses of MOON and PropFair carry adapters away.
    "lora-rank": {"learning-rate": 0.01},
    "lora-average": {"learning-rate": 0.01},
    "loss-clip": {"effective-clients": 0.0},
    "most-examples": {"secure-aggregation": "unmasked"},
    "model": {"hidden-width": 200, "hidden-layers": 2, "num-rounds": 3},
    "pfedck-feature-weight": {"pfedck-clusters": 1},
    "pfedck-logit-weight": {"pfedck-clusters": 1},
    "pfedck-temperature": {"pfedck-clusters": 1},
    "over-select": {"devices": "hospitals", "clients-per-round": 2},
    "pool-size": {"rank-every": 1},
    "public-used": {"public-size": 40},
    "quantisation-bits": {"secure-aggregation": "unmasked"},
    "round-deadline": {"devices": "hospitals"},
    "selection": {"clients-per-round": 2},
    "selection-candidates": {
        "selection": "power-of-choice",
        # Who never trained comes first, so that all have before the losses choose.
        "selection-ratio": "off",
        "num-clients": 5,
        "clients-per-round": 1,
        "num-rounds": 8,
    },
    "selection-ratio": {"selection": "oort", "clients-per-round": 1, "num-rounds": 6},
    "stop-at-seconds": {"devices": "hospitals"},
    "quorum": {"drop-out": 0.4, "max-failed-rounds": 1},
    "temperature-decay": {"effective-clients": 0.0},
    "theta": {"theta": 0.0},
    "travels": {"hidden-layers": 2},
}
"""What stands beside a key, before and after its change, for it to have an effect."""

NOT_ON_DIGITS = ("natural-id",)
"""Partitioners by owners, which digits do not have."""

ELSEWHERE: Mapping[str, str] = {
    "dp-max-weight": "of weights by losses: tests/rounds/test_central_privacy.py",
    "reconstruction-threshold": "acts on losses: tests/rounds/test_secure_sums.py",
    "most-loss": "of weights by losses: tests/running/test_secure_runs.py",
    "preset": "brings other keys' values: tests/experiment/test_presets.py",
    "natural-ids": "digits have no owners: tests/data",
    "natural-min-size": "digits have no owners: tests/data",
    "reddit-targets": "of another data set: tests/running/test_reddit_runs.py",
    "diabetes-clients": "of another data set: tests/data",
    "diabetes-target": "of another data set: tests/data",
    "task": "digits are of classes: tests/running/test_tasks.py",
    "huber-delta": "digits are of classes: tests/training/test_tasks.py",
    "quantile": "digits are of classes: tests/training/test_tasks.py",
    "interval-ends": "digits are of classes: tests/training/test_survival.py",
    "table-columns": "of another data set: tests/data",
    "schema": "of another data set: tests/running/test_site_tables.py",
    "columns": "of another data set: tests/data/test_site_tables.py",
    "target": "of another data set: tests/data/test_site_tables.py",
    "client-column": "of another data set: tests/running/test_site_tables.py",
    "picture-classes": "of another data set: tests/data/test_picture_folders.py",
    "picture-size": "of another data set: tests/data/test_picture_folders.py",
    "picture-colours": "of another data set: tests/data/test_picture_folders.py",
    "vocabulary-size": "of a network of words: tests/models/test_words.py",
    "embedding-width": "of a network of words: tests/models/test_words.py",
    "table-classes": "of another data set: tests/data",
    "decompose-stem": "refused here, for want of such a layer: tests/models",
    "decompose-1x1": "refused here, for want of such a layer: tests/models",
}
"""Keys that apply to other data, networks or packages than these runs have."""

TOGETHER: Mapping[str, Mapping[str, Value]] = {
    "early-stop-metric": {"early-stop-patience": 1},
    "optimizer": {"learning-rate": 0.05},
}
"""What changes with a key, and is refused without it."""


@dataclass(frozen=True)
class Case:
    """A key, another value of it, and what stands beside it.

    Parameters
    ----------
    before
        The experiment without the change.
    changed
        What is changed: the key, and what must change with it.
    key
        The key.
    """

    before: Mapping[str, Value]
    changed: Mapping[str, Value]
    key: str

    def __str__(self) -> str:
        method = str(self.before["method"])
        said = {**self.before, **self.changed}.items() - base(method).items()
        words = " ".join(f"{name}={value}" for name, value in sorted(said))
        return f"{method}: {self.key}: {words}"


def cases(
    method: str,
    around: Mapping[str, Value] = NO_WRAPPER,
    wanted: Set[str] | None = None,
) -> Iterator[Case]:
    """Yield all cases of a method: each key alone, and beside what it needs.

    Parameters
    ----------
    method
        The method.
    around
        What wraps it in every case, such as :data:`WRAPPED`.
    wanted
        The keys to try; None tries all. To look for what others need takes its time.
    """
    start = {**base(method), **around}
    for owner, keys in groups(method):
        for key in keys:
            if key.name in LISTED or (wanted is not None and key.name not in wanted):
                continue
            before = {**start, **owner, **BESIDE.get(key.name, {})}
            stands = _resolved(before)
            current = stands.get(key.name, key.default)
            yield from _cases(key, before, current)
            if key.needs and not any(need.met(stands) for need in key.needs):
                yield from _cases(key, {**before, **_what_it_needs(key)}, current)


def groups(method: str) -> Iterator[tuple[Mapping[str, Value], Sequence[Key]]]:
    """Yield what an experiment must say for some keys to apply, and these keys."""
    yield {}, tuple(shared_keys().values())
    yield {}, load_strategy(METHODS[method]).method_keys()
    yield {}, keys_of("model", "mlp")
    for name in owners("partitioner"):
        if name not in NOT_ON_DIGITS:
            yield {"partitioner": name}, keys_of("partitioner", name)
    yield FACTORED, keys_of("decomposition", "true")


def other_values(key: Key, current: Value) -> tuple[Value, ...]:
    """Return legal values of a key that are not the current one."""
    if key.name in OTHERS:
        return tuple(value for value in OTHERS[key.name] if value != current)
    if isinstance(current, bool):
        return (not current,)
    if key.choices:
        return tuple(choice for choice in key.choices if choice != current)
    if isinstance(current, int):
        return (current - 1 if current == key.maximum else current + 1,)
    if isinstance(current, float):
        half = current / 2 or 0.5
        return (half if key.maximum is None or half <= key.maximum else key.maximum / 2,)
    raise AssertionError(f"key {key.name}: say in OTHERS which other value it is to take")


def _resolved(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the whole experiment; what is given where that is refused."""
    try:
        return Experiment.from_values(values).values
    except ConfigError:
        return values


def _cases(key: Key, before: Mapping[str, Value], current: Value) -> Iterator[Case]:
    for value in other_values(key, current):
        if (before["method"], value) in SAME:
            continue
        changed = {key.name: value, **TOGETHER.get(key.name, {})}
        yield Case(before, changed, key.name)


def _what_it_needs(key: Key) -> dict[str, Value]:
    """Return what lets a key have an effect."""
    need = key.needs[0]
    if isinstance(need, With):
        return {need.key: need.value}
    other = known_keys()[need.key].declarations[0]
    return {need.key: other_values(other, need.value)[0]}
