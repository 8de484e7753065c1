"""One run with liars, and what became of it."""

import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from flwr.serverapp import Grid

from fedsuite.clients import load_client
from fedsuite.core.errors import ConfigError, FedsuiteError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.data import Split
from fedsuite.engines.local import run_local
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import EVALUATE, TRAIN, Arrays
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.results.reader import load_run
from fedsuite.results.suspects import suspects
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.validation import check_reply
from fedsuite.running import server
from fedsuite.strategies import load_strategy
from fedsuite.training.attack_plan import AttackPlan, flipped, num_liars
from simulations.liars.lies import ABSENT, Lie, LyingGrid, Target
from simulations.liars.thresholds import thresholds

ROUNDS = 6

NOBODY = "nobody"
"""Who stands out first where no client stands out."""

BASE: Mapping[str, Value] = {
    "partitioner": "dirichlet",
    "dirichlet-alpha": 1.0,
    "model": "mlp",
    "hidden-width": 16,
    "num-rounds": ROUNDS,
    "device": "cpu",
    "workers": 1,
    "checkpoint-every": 0,
    "report": False,
    "best-model-metric": "accuracy_mean",
}

WORK: Mapping[str, Value] = {"local-steps": 10, "batch-size": 32}
ADAM: Mapping[str, Value] = {"optimizer": "adam", "learning-rate": 0.02}
SGD: Mapping[str, Value] = {"learning-rate": 0.3}
PUBLIC = 60


class RefusedError(Exception):
    """An experiment that is refused before its first round."""


@dataclass(frozen=True)
class Setting:
    """Data, how many of how many clients lie, and whether runs may stop early."""

    name: str
    dataset: str
    clients: int = 5
    liars: int = 1
    stops: bool = False

    @property
    def keys(self) -> dict[str, Value]:
        """The keys that it sets."""
        if not self.stops:
            return {"dataset": self.dataset}
        return {
            "dataset": self.dataset,
            "early-stop-metric": "accuracy_mean",
            "early-stop-patience": ROUNDS - 2,
        }


SETTINGS = (
    Setting("10 classes", "digits", stops=True),
    Setting("2 classes", "simulations.liars.made:two_classes", 7, 2),
    Setting("100 classes", "simulations.liars.made:hundred_classes"),
)


@dataclass
class Outcome:
    """What became of a run.

    Parameters
    ----------
    liars
        Who lied.
    sizes
        Each client's share of the examples, from the partition.
    shares, weights
        Client to its share of the final model, as measured by a direction of its own, and
        to the largest weight that the method reported.
    accuracies
        Accuracy of each honest client after the last round; 0 where it had none.
    rounds
        Rounds that were run.
    failed
        Rounds of these that left the model as it was, or took it back.
    ended
        What ended the run early; empty of nothing.
    named
        Honest clients that an event names: client and event.
    targets
        What the liar's replies had.
    limits
        Thresholds of the strategy, and the bounds of its messages.
    first_suspect
        ``liar``, ``honest`` or ``nobody``: who stands out first in ``analyse suspects``;
        empty where it cannot tell.
    backdoor
        Share of rows with a trigger that the final model gives the trigger's class.
    """

    liars: tuple[int, ...]
    sizes: tuple[float, ...] = ()
    shares: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)
    rounds: int = 0
    failed: int = 0
    ended: str = ""
    named: frozenset[tuple[int, str]] = frozenset()
    targets: frozenset[Target] = frozenset()
    limits: frozenset[float] = frozenset()
    first_suspect: str = ""
    backdoor: float | None = None

    @property
    def share(self) -> float | None:
        """Largest share of one liar; None where neither way tells."""
        found = [d[k] for d in (self.shares, self.weights) for k in self.liars if k in d]
        return max(found, default=None)

    @property
    def size_share(self) -> float:
        """Largest share that a liar's size gives, or its being one of so many."""
        return max(*(self.sizes[k] for k in self.liars), 1 / len(self.sizes))

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the honest clients, in per cent."""
        return 100 * fmean(self.accuracies.values()) if self.accuracies else 0.0


def values_of(method: str, setting: Setting) -> dict[str, Value]:
    """Return the small experiment with a method, by what its class declares."""
    strategy = load_strategy(METHODS[method])
    values: dict[str, Value] = {
        **BASE,
        **setting.keys,
        "num-clients": setting.clients,
        "method": method,
    }
    if strategy.takes("public_rows") or strategy.takes("public"):
        values["public-size"] = PUBLIC
    own = {*strategy.FIXED, *strategy.UNUSED}
    # Some methods refuse to choose a model or a round by the accuracy of all.
    unchosen = {k: v for k, v in values.items() if not k.startswith(("early", "best"))}
    for start, how in product((values, unchosen), ({**WORK, **ADAM}, {**WORK, **SGD})):
        tried = {**start, **{k: v for k, v in how.items() if k not in own}}
        try:
            Experiment.from_values(tried)
        except ConfigError:
            continue
        return tried
    return values


def play(
    method: str,
    setting: Setting,
    lie: Lie,
    *,
    seed: int = 0,
    together: bool = False,
    changes: Mapping[str, Value] | None = None,
) -> Outcome:
    """Run a method with liars, through all that a run does, and return what became of it.

    Parameters
    ----------
    method, setting, lie, seed
        What to run; the seed draws what is random in a lie.
    together
        Whether all liars send the same.
    changes
        Other keys.
    """
    values = {**values_of(method, setting), **(changes or {})}
    share = setting.liars / setting.clients
    if lie.data != "own":
        values |= {"attack": "label-flip", "attackers": share}
    try:
        experiment = Experiment.from_values(values)
    except ConfigError as error:
        raise RefusedError(f"{method}: {error}") from error
    plan = AttackPlan(
        attack="scale", attackers=share, seed=experiment.seed, num_clients=setting.clients
    )
    assert num_liars(share, setting.clients) == setting.liars
    liars = tuple(sorted(plan.liars()))
    outcome, num_rounds = Outcome(liars), int(values["num-rounds"])
    trained = frozenset(load_client(METHODS[method]).TRAINED)
    grids: list[LyingGrid] = []
    limits: set[float] = set()

    def lying(_: Experiment, grid: Grid) -> Grid:
        one_model = load_strategy(METHODS[method]).trains_one_model()
        told = lie if one_model else Lie(lie.acts, lie.data)
        how = (told, liars, trained, num_rounds, seed, together)
        grids.append(LyingGrid(grid, *how))
        return grids[-1]

    def built(*given: Any) -> FederatedStrategy:
        strategy = build(*given)
        limits.update(thresholds(strategy))
        return strategy

    def checked(client_id: int, content: Any, expected: Any) -> Any:
        for pair in expected.bounds.values():
            limits.update(abs(bound) for bound in pair if 0 < abs(bound) < math.inf)
        return check_reply(client_id, content, expected)

    build, final = server.build_strategy, Arrays()
    with _quick(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with (
            patch.object(server, "with_liars", lying),
            patch.object(server, "build_strategy", built),
            patch("fedsuite.rounds.exchange.check_reply", checked),
            patch("fedsuite.running.worker.flipped", _rows_of(lie.data)),
        ):
            try:
                final = to_arrays(run_local(experiment, path).result.arrays)
            except FedsuiteError as error:
                outcome.ended = f"error: {error}"
            except Exception as error:
                # What ends a run with a traceback is worse than what ends it in a line.
                outcome.ended = f"traceback: {type(error).__name__}: {error}"
        if not path.exists() or not grids:
            raise RefusedError(f"{method}: refused before its first round: {outcome.ended}")
        _read(outcome, path)
    outcome.targets, outcome.limits = frozenset(grids[0].targets), frozenset(limits)
    if not outcome.ended and outcome.rounds < num_rounds:
        outcome.ended = "stopped early"
    if lie.probe and final:
        outcome.shares = grids[0].probe.shares(final)
    if lie.data == "trigger" and final:
        outcome.backdoor = _backdoor(experiment, final)
    return outcome


def _read(outcome: Outcome, path: Path) -> None:
    """Fill in what the run's folder tells."""
    partition = json.loads((path / "partition.json").read_text())
    sizes = np.array([sum(row) for row in partition["train"]], dtype=float)
    outcome.sizes = tuple((sizes / sizes.sum()).tolist())
    rounds, clients, events = (
        _lines(path / f"{n}.jsonl") for n in ("rounds", "clients", "events")
    )
    outcome.rounds = len(rounds)
    outcome.failed = sum("round_failed" in row or "went_back_to" in row for row in rounds)
    honest = [k for k in range(len(sizes)) if k not in outcome.liars]
    scored = {
        row["client"]: row.get("accuracy") or 0.0
        for row in clients
        if row["phase"] == EVALUATE and row["round"] == outcome.rounds
    }
    outcome.accuracies = {k: scored.get(k, 0.0) for k in honest}
    for row in clients:
        if row["phase"] == TRAIN and row.get("weight") is not None:
            k = row["client"]
            outcome.weights[k] = max(outcome.weights.get(k, 0.0), row["weight"])
    outcome.named = frozenset(
        (row["client"], f"{row['kind']} {row.get('cause', '')}".strip())
        for row in events
        if row.get("client") in honest
    )
    try:
        ranked = suspects(load_run(path))
    except FedsuiteError:
        return
    if ranked:
        outcome.first_suspect = NOBODY
        if ranked[0].because:
            liar = ranked[0].client in outcome.liars
            outcome.first_suspect = "liar" if liar else "honest"


def _lines(path: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


@contextmanager
def _quick() -> Iterator[None]:
    """Leave out what takes most of a small run's time and says nothing of lies."""
    with (
        patch("os.fsync"),
        patch("fedsuite.results.writer._version", return_value=""),
        redirect_stdout(io.StringIO()),
    ):
        yield


# --------------------------------------------------------------- rows that a liar trains on

TRIGGER_CLASS = 0


def triggered(split: Split) -> Split:
    """Return rows of an image with a trigger: a bright corner."""
    features = split.features.clone()
    features[..., :2, :2] = 1.0
    return Split(features, torch.full_like(split.labels, TRIGGER_CLASS))


def _one_class(split: Split, num_classes: int) -> Split:
    rows = split.labels == torch.bincount(split.labels, minlength=num_classes).argmax()
    return Split(split.features[rows], split.labels[rows])


def _with_trigger(split: Split, num_classes: int) -> Split:
    half = len(split) // 2
    marked = triggered(Split(split.features[:half], split.labels[:half]))
    features = torch.cat([split.features, marked.features])
    return Split(features, torch.cat([split.labels, marked.labels]))


def _rows_of(data: str) -> Callable[[Split, int], Split]:
    """Return what makes the rows of a liar, in place of flipped labels."""
    others = {"one-class": _one_class, "trigger": _with_trigger}
    return others.get(data, flipped)


def _backdoor(experiment: Experiment, final: Arrays) -> float:
    """Return the share of others' rows that a trigger turns to its class."""
    data = federated_data(experiment)
    model = network_model(experiment, data)
    load_arrays(model, {n: final[n] for n in model_arrays(model)})
    test = data.test_set()
    rows = test.labels != TRIGGER_CLASS
    marked = triggered(Split(test.features[rows], test.labels[rows]))
    with torch.no_grad():
        predicted = model(marked.features).argmax(dim=1)
    return float((predicted == TRIGGER_CLASS).float().mean())


@lru_cache(maxsize=16)
def absent(method: str, setting: Setting) -> Outcome:
    """Return what becomes of a run in which the liars never answer."""
    return play(method, setting, ABSENT)
