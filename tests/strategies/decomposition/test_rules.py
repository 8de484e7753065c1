"""What filter decomposition refuses before anything starts, and what holds elsewhere."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fedsuite.clients import load_client
from fedsuite.clients.drift.feddc import FedDCClient
from fedsuite.clients.drift.feddyn import LAMBDA, FedDynClient
from fedsuite.clients.drift.scaffold import ScaffoldClient
from fedsuite.clients.fair.probed import ProbedClient
from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.messages.decomposition import CLIENT_KEYS, KEYS
from fedsuite.messages.records import CONTROL, DRIFT, Arrays
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.fedvarp import UpdateMemory
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies import (
    CFFL,
    FD,
    Ditto,
    FedAKD,
    FedAvgFT,
    FedDC,
    FedDyn,
    FedEBAPlus,
    FedFV,
    FedPer,
    Scaffold,
    Standalone,
    load_strategy,
)
from fedsuite.strategies.drift.corrected import CorrectedStrategy
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import digits_experiment
from tests.strategies.decomposition.factored import (
    CLIENTS,
    FAST,
    GROUPS,
    SLOW_NAMES,
    Recorder,
    arrays_in,
    federate,
    initial,
    make_app,
    no_evaluation,
    wrap,
)

OTHER_VALUES = {"coefficient-period": 3, "personal-atoms": True, "freeze-atoms": True}

DECOMPOSABLE = [name for name, m in METHODS.items() if "fedpara" not in name]


def factored_experiment(method: str, **changes: Any) -> Any:
    strategy = load_strategy(METHODS[method])
    fixed = {name.replace("-", "_"): value for name, value in strategy.FIXED.items()}
    return digits_experiment(
        method=method,
        model="cnn-shallow",
        decomposition=True,
        client_initialisation="shared",
        **{
            **fixed,
            **({"public_size": 32} if strategy.takes("public_rows") else {}),
            **changes,
        },
    )


@pytest.mark.parametrize("method", DECOMPOSABLE)
def test_methods_without_one_shared_model_are_refused_before_the_run(method: str) -> None:
    factored_experiment(method)
    strategy = load_strategy(METHODS[method])
    none = strategy.takes("groups") or not strategy.trains_one_model()
    for key in CLIENT_KEYS:
        changes = {key.replace("-", "_"): OTHER_VALUES[key]}
        if strategy.CORRECTS_GRADIENTS and "period" in key:
            changes["local_coefficients"] = "freeze"
        try:
            factored_experiment(method, **changes)
        except ConfigError as error:
            assert "\n" not in str(error)
            assert str(error).startswith(f"key {key} = {OTHER_VALUES[key]}")
            refused = True
        else:
            refused = False
        scored_otherwise = key == "personal-atoms" and strategy.SCORED_MODEL != "shared"
        assert refused == (none or scored_otherwise), key


def test_the_methods_that_are_meant() -> None:
    """By name, so that a declaration that is lost is seen."""

    def named(fits: Callable[[Any], bool]) -> set[str]:
        return {n for n in DECOMPOSABLE if fits(load_strategy(METHODS[n]))}

    assert named(lambda s: not s.trains_one_model()) >= {
        "standalone", "cffl", "cgsv", "fedave", "fedsac", "fedmd", "fedmd-lf", "fedal",
        "fd", "fedproto", "fedproto-public", "cfd", "fccl", "fccl-plus", "feddf",
        "feddf-al",
    }  # fmt: skip
    assert named(lambda s: s.SCORED_MODEL == "private") >= {"ditto", "fedakd"}
    assert named(lambda s: s.SCORED_MODEL == "tuned") >= {"fedavg-ft", "fedprox-ft"}
    corrected = {"scaffold", "feddyn", "feddc", "fedeba-plus"}
    assert named(lambda s: s.CORRECTS_GRADIENTS) >= corrected


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        (
            lambda: FD(num_classes=2),
            {"coefficient_period": 2},
            "FD: its clients do not all",
        ),
        (
            Standalone,
            {"freeze_atoms": True},
            "True cannot go with Standalone",
        ),
        (
            Standalone,
            {"personal_atoms": True},
            "Standalone: its clients do not",
        ),
        (
            lambda: CFFL(validation=None),
            {"personal_atoms": True},
            "CFFL: its clients do",
        ),
        (
            lambda: FedPer(groups=GROUPS),
            {"coefficient_period": 2},
            "divides the model itself",
        ),
        (Ditto, {"personal_atoms": True}, "Ditto: it scores clients with a private model"),
        (
            FedAKD,
            {"personal_atoms": True},
            "FedAKD: it scores clients with a priv",
        ),
        (
            FedAvgFT,
            {"personal_atoms": True},
            "AvgFT: it scores clients with a tuned",
        ),
        (
            Ditto,
            {"coefficient_period": 2, "local_coefficients": "freeze"},
            "with Ditto and .*: that would also freeze the private models",
        ),
        (FedDyn, {"coefficient_period": 2}, "FedDyn .* it corrects gradients .* 'freeze'"),
        (
            lambda: FedDC(feddc_gradient_terms=False),
            {"coefficient_period": 2, "local_coefficients": "persist"},
            "coefficient_period = 2 cannot go with FedDC .* corrects gradients",
        ),
        (Scaffold, {"coefficient_period": 2}, "Scaffold .* corrects gradients"),
        (FedEBAPlus, {"coefficient_period": 2}, "FedEBAPlus .* corrects gradients"),
    ],
)
def test_the_wrapper_refuses_the_same(
    strategy: Callable[[], FederatedStrategy], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        wrap(strategy(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fast_set": "atoms"}, "fast-set = 'atoms' has no effect with coefficient-period"),
        ({"local_coefficients": "freeze"}, "no effect with coefficient-period = 1"),
        ({"personal_epochs": 2}, "personal-epochs = 2 has no effect with personal-atoms"),
        ({"personal_head": "local"}, "no effect with personal-atoms = False: set"),
        (
            {"refresh_epochs": 1, "coefficient_period": 3},
            "refresh-epochs = 1 has no effect",
        ),
    ],
)
def test_keys_that_would_do_nothing(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        factored_experiment("fedavg", **changes)
    with pytest.raises(ValueError, match=words.replace("-", "_")):
        wrap(**changes)


@pytest.mark.parametrize("average", ["factors-regauged", "products-regauged"])
@pytest.mark.parametrize("key", CLIENT_KEYS)
def test_another_gauge_each_round_leaves_clients_nothing_to_keep(
    key: str, average: Any
) -> None:
    """Frozen atoms would change, and personal ones would meet coefficients of others."""
    changes: dict[str, Any] = {key.replace("-", "_"): OTHER_VALUES[key]}
    with pytest.raises(ConfigError, match=f"{key} = .* cannot go with decomposition-"):
        factored_experiment("fedavg", decomposition_average=average, **changes)


def test_each_key_of_the_clients_is_one_of_the_keys() -> None:
    assert set(CLIENT_KEYS) < {key.name for key in KEYS}


def test_frozen_atoms_are_not_tuned_for_the_scoring_either() -> None:
    """The tuned copy is what is scored: with atoms tuned, control C2 would be none."""
    seen = []

    class Spy(load_client(METHODS["fedavg-ft"])):  # type: ignore[misc]
        def on_evaluate(self, request: Any) -> Any:
            reply = super().on_evaluate(request)
            state = self.model.state_dict()
            seen.append({name: state[name].numpy().copy() for name in ("0.atoms", *FAST)})
            return reply

    strategy = wrap(FedAvgFT(min_available_nodes=1), freeze_atoms=True)
    federate(strategy, Recorder(make_app(Spy)), 1)
    assert seen
    for tuned in seen:
        np.testing.assert_array_equal(tuned["0.atoms"], initial()["0.atoms"])
        assert not np.array_equal(tuned["5.weight"], initial()["5.weight"])


# -------------------------------------------------------- vectors of server and of clients

PLAIN = TrainingOptions(local_steps=2, batch_size=4, learning_rate=0.05)
ALPHA = 0.1

METHODS_WITH_VECTORS: dict[str, tuple[Callable[..., Any], type[FederatedClient]]] = {
    "feddyn": (lambda **o: FedDyn(feddyn_alpha=ALPHA, **o), FedDynClient),
    "feddyn, sizes": (
        lambda **o: FedDyn(feddyn_alpha=ALPHA, size_scaled=True, **o),
        FedDynClient,
    ),
    "feddc": (lambda **o: FedDC(feddc_alpha=ALPHA, **o), FedDCClient),
    "feddc, no gradients": (
        lambda **o: FedDC(feddc_alpha=ALPHA, feddc_gradient_terms=False, **o),
        FedDCClient,
    ),
    "scaffold": (lambda **o: Scaffold(**o), ScaffoldClient),
    "scaffold, gradient": (
        lambda **o: Scaffold(scaffold_option="gradient", **o),
        ScaffoldClient,
    ),
}

WRAPPERS: dict[str, dict[str, Any]] = {
    "none": {},
    "freeze": {"coefficient_period": 3, "local_coefficients": "freeze"},
    "freeze-atoms": {"freeze_atoms": True},
    "personal-atoms": {"personal_atoms": True},
    "discard": {"coefficient_period": 3},
    "persist": {"coefficient_period": 3, "local_coefficients": "persist"},
}


def kept_vectors(strategy: Any, store: MemoryStore, kind: str) -> Iterator[Arrays]:
    """Yield one kind of vector of each client that keeps one."""
    for k in range(CLIENTS):
        version = strategy.client_versions.get(1000 + k)
        state = store.load(k, version) if version else {}
        yield {
            name.partition(f"{kind}/")[2]: array
            for name, array in state.items()
            if name.partition("/")[2].startswith(f"{kind}/") or name.startswith(f"{kind}/")
        }


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("method", METHODS_WITH_VECTORS)
def test_the_servers_vector_is_the_mean_of_the_clients(method: str, wrapper: str) -> None:
    """As each paper says: h and g of FedDC, lambda of FedDyn, c of SCAFFOLD.

    Six rounds of two of four clients, so that some miss an upload of the coefficients.
    What cannot hold is refused.
    """
    make, client_class = METHODS_WITH_VECTORS[method]
    inner: CorrectedStrategy = make(
        min_available_nodes=1,
        fraction_evaluate=0.0,
        clients_per_round=2,
        server_momentum=0.5,
        seed=1,
    )
    options = WRAPPERS[wrapper]
    if wrapper in ("discard", "persist"):
        with pytest.raises(ValueError, match="local_coefficients = 'freeze'"):
            wrap(inner, **options)
        return
    store, bare = MemoryStore(), wrapper == "none"
    strategy = inner if bare else wrap(inner, **options)
    app = make_app(client_class, wrapped=not bare, store=store, training=PLAIN)
    trace = federate(strategy, Recorder(app), 6)
    assert not any(report.metrics["replies_rejected"] for report in trace.reports)
    assert inner.num_known_clients == CLIENTS
    kinds = {CONTROL: (CONTROL, 1.0), DRIFT: (DRIFT, 1.0)}
    if isinstance(inner, FedDyn):
        kinds = {DRIFT: (LAMBDA, -ALPHA)}
    checked = set()
    for kind, sums in inner.sums.items():
        name_at_clients, factor = kinds[kind]
        vectors = list(kept_vectors(strategy, store, name_at_clients))
        sizes = getattr(inner, "size_scaled", False)
        omegas = [(8 + k) / 9.5 if sizes else 1.0 for k in range(CLIENTS)]
        for name, total in sums.items():
            expected = sum(
                omega * v.get(name, np.zeros(total.shape)) / factor
                for omega, v in zip(omegas, vectors, strict=True)
            )
            np.testing.assert_allclose(total, expected, atol=3e-6)
            checked |= {name} if np.any(total) else set()
    moving = {*FAST, *SLOW_NAMES} - ({"0.atoms"} if wrapper == "freeze-atoms" else set())
    assert checked == moving


@pytest.mark.parametrize("mode", ["discard", "freeze", "persist"])
def test_fedvarps_memory_is_the_sum_of_what_clients_last_moved(mode: Any) -> None:
    """Under each mode: of slow arrays that is their move at the last upload."""
    last: dict[int, Arrays] = {}
    inner = no_evaluation(fedvarp=True, clients_per_round=2, seed=1)
    grid = Recorder(make_app())
    strategy = wrap(inner, coefficient_period=3, local_coefficients=mode)
    trace = federate(strategy, grid, 6)
    [memory] = [stage for stage in inner.step_stages if stage.name]
    assert isinstance(memory, UpdateMemory)
    states = [initial(), *trace.arrays]
    for server_round in range(1, 7):
        for reply in grid.replies_of(server_round):
            moved = last.setdefault(reply.metadata.src_node_id, {})
            for name, array in arrays_in(reply)["arrays"].items():
                moved[name] = array - states[server_round - 1][name]
    for name, total in memory.total.items():
        zero = np.zeros(total.shape)
        expected = sum(moved.get(name, zero) for moved in last.values())
        np.testing.assert_allclose(total, expected, atol=1e-6)
    assert set(memory.total) == set(initial())


def test_fedfv_hears_past_updates_where_less_travels() -> None:
    """A round of an upload has more arrays than those between, before and after it."""
    inner = FedFV(
        fedfv_tau=2,
        min_available_nodes=1,
        fraction_evaluate=0.0,
        clients_per_round=2,
    )
    strategy = wrap(inner, coefficient_period=3)
    trace = federate(strategy, Recorder(make_app(ProbedClient)), 6)
    assert not any(report.metrics["replies_rejected"] for report in trace.reports)
    arrays, scalars = inner.state()
    assert {name.partition("/")[2] for name in arrays} == set(FAST)
    other = FedFV(fedfv_tau=2)
    other.restore(arrays, scalars)
    assert other.state()[1] == scalars


def test_groups_without_factors_have_nothing_to_refuse() -> None:
    with pytest.raises(ValueError, match="no decomposed layer"):
        wrap(groups=ParameterGroups(head=("a",), other=()))
