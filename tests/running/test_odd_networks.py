"""Every method on networks as people write them, with mini-batches of one row.

Each client has k batches and one row more. No reply is lost. What is measured is within
what the round's clients measured, at any server rate and with every server optimiser. What
is constant stays. An array of two names is one array.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.data import Split
from fedsuite.data.site import SiteData
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.validation import ClientReply
from fedsuite.running.collusion import with_liars
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import initial_arrays, server_parts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.strategies import load_strategy
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.effects.cases import WRAPPED
from tests.effects.runs import base, did, refused_replies
from tests.helpers import Trace
from tests.models.odd_networks import TWINS, Measuring

NETWORKS = "tests.models.odd_networks"
MEASURED = ("mean", "var", "variance", "tracked", "ticks")
STEPS: tuple[Mapping[str, Value], ...] = (
    {"server-learning-rate": 0.5},
    {"server-learning-rate": 1.5},
    {"server-momentum": 0.9},
    {"server-optimizer": "nesterov", "server-momentum": 0.9},
    {"server-optimizer": "adam"},
    {"server-optimizer": "yogi"},
    {"server-optimizer": "adagrad"},
    {"fedvarp": True},
    {"aggregator": "median", "server-learning-rate": 1.5},
    {"aggregator": "trimmed-mean"},
    {"aggregator": "krum"},
)
SAMPLE: tuple[tuple[str, str, Mapping[str, Value]], ...] = (
    ("Measuring", "fedavg", {"server-learning-rate": 0.5}),
    ("Measuring", "fedavg", {"server-optimizer": "adam"}),
    ("Measuring", "fedavg", {"aggregator": "median", "server-learning-rate": 1.5}),
    ("Measuring", "fedavg", {"attack": "scale"}),
    ("Measuring", "focus", {"attack": "sign-flip"}),
    ("Measuring", "fedavg", {"attack": "ipm"}),
    ("Measuring", "scaffold", {"server-learning-rate": 1.5}),
    ("Measuring", "feddyn", {}),
    ("Measuring", "fedeba", {"server-learning-rate": 1.5}),
    ("Measuring", "qffl", {}),
    ("Measuring", "cgsv", {}),
    ("Measuring", "cffl", {}),
    ("Measuring", "fedem", {}),
    ("Measuring", "feddf", {}),
    ("Unusual", "fedavg", {}),
    ("Unusual", "apfl", {}),
    ("Unusual", "per-fedavg", {}),
    ("Unusual", "lp-proj", {}),
    ("Unusual", "lg-fedavg", {}),
    ("Tied", "fedrep", {}),
    ("Tied", "apfl", {}),
    ("Tied", "newton", {}),
)
"""Networks, methods and keys of the fast suite; the nightly one has the registry."""

SPLITS_TWINS = ("cffl",)
"""Methods that send the largest entries, of which one copy of a tie may be one too many."""

ROUNDS_TWINS = ("newton",)
"""Methods whose server solves for both copies of a tie, which its rounding tells apart."""

NO_SUCH_LAYER = ("fedpara", "pfedpara")
"""Methods that need larger layers than the networks here have."""


def rows(data_dir: object, test_fraction: float) -> SiteData:
    labels = torch.arange(39) % 3
    stream = torch.Generator().manual_seed(0)
    features = torch.randn(39, 5, generator=stream) + labels[:, None]
    return SiteData(Split(features, labels), Split(features[:30], labels[:30]))


def one_row_at_one_client(data_dir: object, test_fraction: float) -> SiteData:
    site = rows(data_dir, test_fraction)
    owners = np.repeat([0, 1, 2], [1, 19, 19])
    return replace(site, owners=(owners, owners[:30]))


def experiment(method: str, network: str, step: Mapping[str, Value]) -> Experiment:
    values: dict[str, Value] = {
        "method": method,
        "model": f"{NETWORKS}:{network}",
        "dataset": f"{__name__}:rows",
        "num-clients": 3,
        "num-rounds": 2,
        # Clients have 13 rows, or 9 where some are the server's.
        "batch-size": 4,
        "device": "cpu",
        **step,
    }
    strategy = load_strategy(METHODS[method])
    if strategy.takes("public_rows"):
        values |= {"public-size": 9}
    if strategy.takes("validation"):
        values["server-validation-fraction"] = 0.25
    return Experiment.from_values(values)


class Watched:
    """A run in this process, with what each round's clients sent."""

    def __init__(self, given: Experiment) -> None:
        self.method = str(given["method"])
        worker, data = Worker(given, MemoryStore()), federated_data(given)
        model = network_model(given, data)
        parts = server_parts(given, data, model)
        strategy = build_strategy(given, parts)
        self.first = initial_arrays(given, model, parts)
        self.replies: dict[int, list[Arrays]] = {}
        self._watch(strategy)
        trace = Trace()
        with flower_identity():
            strategy.start(
                with_liars(given, LocalGrid(client_app_for(worker), 3)),
                to_record(self.first),
                int(given["num-rounds"]),
                callbacks=[trace],
            )
        self.models = trace.arrays
        self.lost = [
            reply.reason
            for report in trace.reports
            for phase in report.phases
            for reply in phase.rejections
        ]

    def _watch(self, strategy: FederatedStrategy) -> None:
        passed = strategy.passed

        def watching(reader: Any, messages: Any, phase: str) -> Iterator[ClientReply]:
            for reply in passed(reader, messages, phase):
                if ARRAYS in reply.arrays:
                    replies = self.replies.setdefault(strategy.server_round, [])
                    replies.append(dict(reply.arrays[ARRAYS]))
                yield reply

        strategy.passed = watching  # type: ignore[method-assign]

    def check(self) -> None:
        """Fail where a reply was lost, or an array is what it must not be."""
        assert not self.lost
        for server_round, model in enumerate(self.models, 1):
            before = self.models[server_round - 2] if server_round > 1 else self.first
            for name, array in model.items():
                last = name.rpartition("/")[2]
                if last in Measuring.CONSTANT:
                    assert np.array_equal(array, self.first[name]), name
                elif last.endswith(MEASURED) and not np.array_equal(array, before[name]):
                    self._check_measured(name, array, server_round)
            for one, other in () if self.method in SPLITS_TWINS else TWINS:
                if one in model and other in model:
                    alike = np.allclose if self.method in ROUNDS_TWINS else np.array_equal
                    assert alike(model[one], model[other]), (one, other)

    def _check_measured(self, name: str, array: np.ndarray, server_round: int) -> None:
        if "var" in name:
            assert (array >= 0).all(), name
        sent = [
            arrays[name] for arrays in self.replies.get(server_round, ()) if name in arrays
        ]
        if sent:
            least, most = np.min(sent, 0), np.max(sent, 0)
            slack = 1e-5 * np.abs(most) + 1e-6
            assert (least - slack <= array).all() and (array <= most + slack).all(), name


@pytest.mark.parametrize(("network", "method", "keys"), SAMPLE, ids=str)
def test_no_reply_is_lost_and_what_is_measured_is_averaged(
    network: str, method: str, keys: Mapping[str, Value]
) -> None:
    Watched(experiment(method, network, keys)).check()


LONE: Mapping[str, Value] = {
    "dataset": f"{__name__}:one_row_at_one_client",
    "partitioner": "natural-id",
}


def test_a_client_that_takes_no_step_is_a_client_of_fednova() -> None:
    Watched(experiment("fednova", "Measuring", LONE)).check()


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("network", "keys"),
    [
        ("Measuring", {}),
        ("Unusual", {}),
        ("Tied", {}),
        ("Tied", {"batch-size": 1, "optimizer": "sgd", "learning-rate": 0.001}),
        ("Measuring", LONE),
    ],
    ids=str,
)
def test_every_method_runs_or_refuses_in_one_line(
    network: str, keys: Mapping[str, Value], method: str
) -> None:
    try:
        run = Watched(experiment(method, network, keys))
    except ConfigError as error:
        own_head = network == "Tied" and method == "fedpac"
        assert own_head or method in (*NO_SUCH_LAYER, "fedsac"), error
        assert "\n" not in str(error)
        return
    run.check()


def methods_that_take(step: Mapping[str, Value]) -> Iterator[str]:
    for method in METHODS:
        try:
            experiment(method, "Measuring", step)
        except ConfigError:
            continue
        yield method


def test_clients_of_equal_size_give_the_plain_mean() -> None:
    run = Watched(experiment("fedavg", "Measuring", {"server-learning-rate": 1.5}))
    run.check()
    for name in ("norm.running_var", "own_variance", "own_mean", "ticks"):
        mean = np.mean([arrays[name] for arrays in run.replies[2]], axis=0)
        np.testing.assert_allclose(run.models[-1][name], mean, rtol=1e-5, atol=1e-7)
    # A network whose buffers are not sent would show nothing.
    assert set(Measuring.CONSTANT) < set(run.models[-1])
    assert [len(replies) for replies in run.replies.values()] == [3, 3]


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_no_step_of_any_methods_server_does(step: Mapping[str, Value]) -> None:
    for method in methods_that_take(step):
        if method not in NO_SUCH_LAYER:
            Watched(experiment(method, "Measuring", step)).check()


@pytest.mark.parametrize("network", ["Complex", "ComplexBuffer"])
def test_complex_numbers_are_refused_in_one_line(network: str) -> None:
    given = experiment("fedavg", network, {})
    with pytest.raises(ConfigError, match=r"is torch.complex64: expected .* two arrays"):
        network_model(given, federated_data(given))


def test_liars_lie_behind_a_wrapper_of_their_client_too() -> None:
    values = {**base("fedavg"), **WRAPPED, "attack": "sign-flip"}
    assert refused_replies(did(values)) == 0
