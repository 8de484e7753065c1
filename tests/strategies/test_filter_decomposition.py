"""Fast and slow arrays: who gets what, when, and at what cost."""

from collections.abc import Callable, Sequence
from typing import Any

import flwr.serverapp.strategy as flower
import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as some

from fedsuite.clients.fedavg import FedAvgClient
from fedsuite.clients.fedeba import FedEBAPlusClient
from fedsuite.clients.fedprox import FedProxClient
from fedsuite.clients.privacy import PrivacyOptions
from fedsuite.clients.store import MemoryStore
from fedsuite.decomposition import SLOW
from fedsuite.errors import ConfigError, RunError
from fedsuite.models.groups import ParameterGroups
from fedsuite.records import ARRAYS, EVALUATE, Reply, Request
from fedsuite.strategies import FilterDecomposition
from fedsuite.strategies.fedavg import FedAvg
from fedsuite.strategies.fedeba_plus import FedEBAPlus
from fedsuite.strategies.fedprox import FedProx
from fedsuite.strategies.latent_clients import average_of_products
from fedsuite.strategies.standalone import Standalone
from tests.helpers import Trace, bits
from tests.strategies.factored import (
    ATOMS,
    CLIENTS,
    COEFFICIENTS,
    FAST,
    GROUPS,
    SLOW_NAMES,
    Recorder,
    Told,
    arrays_in,
    federate,
    initial,
    make_app,
    no_evaluation,
    tiny_model,
    total,
    wrap,
)

NUM_SLOW = sum(initial()[name].size for name in SLOW_NAMES)
NUM_FAST = sum(initial()[name].size for name in FAST)


def changes(trace: Trace, name: str) -> list[int]:
    """Return the rounds after which an array differed from before."""
    states = [initial(), *trace.arrays]
    return [
        index
        for index in range(1, len(states))
        if not np.array_equal(states[index - 1][name], states[index][name])
    ]


# ------------------------------------------------------------------------------- schedule


def test_coefficients_change_after_each_fifth_round_from_the_first() -> None:
    """Specification's test 9: P = 5, 11 rounds; t = 0, 5, 10 are rounds 1, 6, 11."""
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=5), grid, 11)
    for name in SLOW_NAMES:
        assert changes(trace, name) == [1, 6, 11]
    for name in FAST:
        assert changes(trace, name) == list(range(1, 12))
    for server_round in range(1, 12):
        for message in grid.of_round(server_round):
            assert list(arrays_in(message)[ARRAYS]) == FAST
        expected = set(initial()) if server_round in (1, 6, 11) else set(FAST)
        for reply in grid.replies_of(server_round):
            assert {n: set(a) for n, a in arrays_in(reply).items()} == {ARRAYS: expected}


def test_a_period_of_ten_has_two_uploads_in_twenty_rounds() -> None:
    strategy = wrap(coefficient_period=10)
    assert [r for r in range(1, 21) if strategy.is_sync(r)] == [1, 11]


def test_without_upload_the_filters_are_the_mean_of_products() -> None:
    """The coefficients are the same for all, so there are no cross terms."""
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=2), grid, 2)
    replies = [arrays_in(reply)[ARRAYS] for reply in grid.replies_of(2)]
    kept = trace.arrays[0][COEFFICIENTS]
    expected = average_of_products(
        np.array([kept] * CLIENTS),
        np.array([reply[ATOMS] for reply in replies]),
        np.array([8, 9, 10, 11]) / 38,
    )
    found = np.tensordot(trace.arrays[1][COEFFICIENTS], trace.arrays[1][ATOMS], axes=1)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize(
    ("fast_set", "names"),
    [
        ("atoms", [ATOMS]),
        ("atoms+head", FAST),
        ("atoms+head+other", [n for n in initial() if n != COEFFICIENTS]),
    ],
)
def test_fast_sets(fast_set: Any, names: list[str]) -> None:
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=3, fast_set=fast_set), grid, 3)
    assert set(arrays_in(grid.replies_of(2)[0])[ARRAYS]) == set(names)
    assert [name for name in initial() if changes(trace, name) == [1, 2, 3]] == [
        name for name in initial() if name in names
    ]


def test_period_1_is_the_plain_strategy_bit_for_bit() -> None:
    plain = federate(no_evaluation(), Recorder(make_app(wrapped=False)), 3)
    wrapped = federate(wrap(freeze_atoms=False), Recorder(make_app(wrapped=False)), 3)
    assert bits(plain.arrays[-1]) == bits(wrapped.arrays[-1])


def test_all_in_the_fast_set_but_coefficients_that_nobody_trains() -> None:
    """With what is slow frozen on both sides, a period makes no difference."""

    def frozen(groups: ParameterGroups) -> Callable[[], Any]:
        def build() -> Any:
            model = tiny_model()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name not in groups.coefficients)
            return model

        return build

    options = {"model": frozen(GROUPS)}
    every = federate(no_evaluation(), Recorder(make_app(wrapped=False, **options)), 3)
    strategy = wrap(coefficient_period=3, fast_set="atoms+head+other")
    third = federate(strategy, Recorder(make_app(**options)), 3)
    assert bits(every.arrays[-1]) == bits(third.arrays[-1])


# ---------------------------------------------------------------- who holds which version


def downloads(grid: Recorder, num_rounds: int) -> list[list[int]]:
    """Return, per round, the partitions that were sent slow arrays."""
    found = []
    for server_round in range(1, num_rounds + 1):
        messages = grid.of_round(server_round)
        lacking = [m for m in messages if SLOW in arrays_in(m)]
        for message in lacking:
            assert list(arrays_in(message)[SLOW]) == SLOW_NAMES
        found.append([m.metadata.dst_node_id - 1000 for m in lacking])
    return found


def test_slow_arrays_go_to_those_who_lack_them() -> None:
    """After an upload all lack the new ones once; at the next upload all hold them."""
    grid = Recorder(make_app())
    trace = federate(wrap(coefficient_period=3), grid, 5)
    all_clients = list(range(CLIENTS))
    assert downloads(grid, 5) == [all_clients, all_clients, [], [], all_clients]
    assert not any(report.metrics["replies_rejected"] for report in trace.reports)


def simulate(sampled: Sequence[Sequence[int]], period: int) -> list[list[int]]:
    """Return who lacks the slow arrays in each round, by an account of its own."""
    version, held, lacking = 0, dict[int, int](), []
    for index, clients in enumerate(sampled):
        lacking.append([k for k in clients if held.get(k) != version])
        held |= dict.fromkeys(clients, version)
        version += index % period == 0
    return lacking


@settings(max_examples=12, deadline=None)
@given(
    seed=some.integers(0, 1000),
    period=some.integers(2, 4),
    per_round=some.integers(1, CLIENTS),
    mode=some.sampled_from(["discard", "freeze", "persist"]),
)
def test_each_client_starts_from_the_current_model(
    seed: int, period: int, per_round: int, mode: Any
) -> None:
    """Whoever is drawn: completed arrays equal the server's, and nothing is sent twice."""
    starts: list[tuple[int, int, dict[str, np.ndarray]]] = []

    def watch(client_id: int, request: Request, reply: Reply | None) -> None:
        if reply is None:
            starts.append((request.server_round, client_id, dict(request.arrays[ARRAYS])))

    inner = no_evaluation(clients_per_round=per_round, seed=seed)
    strategy = wrap(inner, coefficient_period=period, local_coefficients=mode)
    grid = Recorder(make_app(Told, watch=watch))
    trace = federate(strategy, grid, 6)
    server = [initial(), *trace.arrays]
    for server_round, _, arrays in starts:
        assert list(arrays) == list(initial())
        for name in FAST if mode == "persist" else arrays:
            np.testing.assert_array_equal(arrays[name], server[server_round - 1][name])
    sampled = [[k for r, k, _ in starts if r == i] for i in range(1, 7)]
    assert downloads(grid, 6) == simulate(sampled, period)
    slow_sent = sum(map(len, simulate(sampled, period)))
    counted = sum(report.metrics["true_parameters_down"] for report in trace.reports)
    assert counted == 6 * per_round * NUM_FAST + slow_sent * NUM_SLOW


def lose(client: int, in_round: int) -> Callable[[int, list[Message]], list[Message]]:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        if server_round != in_round:
            return replies
        return [m for m in replies if m.metadata.src_node_id != 1000 + client]

    return tamper


def test_a_reply_that_is_lost_leaves_the_server_sure_of_nothing() -> None:
    """Client 2 stored what it got, but nobody heard: it is sent the arrays again."""
    grid = Recorder(make_app(), tamper=lose(2, in_round=2))
    federate(wrap(coefficient_period=5), grid, 4)
    assert downloads(grid, 4) == [[0, 1, 2, 3], [0, 1, 2, 3], [2], []]


def test_a_client_that_does_not_say_that_it_stored_holds_nothing() -> None:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        if server_round == 2:
            del replies[0].content["metrics"]["stored-state"]
        return replies

    grid = Recorder(make_app(), tamper=tamper)
    federate(wrap(coefficient_period=5), grid, 3)
    assert downloads(grid, 3)[2] == [0]


def test_a_client_killed_in_the_round_of_an_upload() -> None:
    grid = Recorder(make_app(), tamper=lose(1, in_round=1))
    trace = federate(wrap(coefficient_period=3), grid, 3)
    assert downloads(grid, 3) == [[0, 1, 2, 3], [0, 1, 2, 3], []]
    assert [report.metrics["replies_rejected"] for report in trace.reports] == [1, 0, 0]


def test_an_upload_below_the_quorum_leaves_versions_as_they_are() -> None:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        return replies[:1] if server_round == 3 else replies

    grid = Recorder(make_app(), tamper=tamper)
    strategy = wrap(no_evaluation(quorum=3), coefficient_period=2)
    trace = federate(strategy, grid, 5)
    assert changes(trace, COEFFICIENTS) == [1, 5]
    assert downloads(grid, 5) == [[0, 1, 2, 3], [0, 1, 2, 3], [], [], []]


def test_a_bad_reply_counts_for_nothing() -> None:
    def tamper(server_round: int, replies: list[Message]) -> list[Message]:
        if server_round == 2:
            arrays_in(replies[0])  # A whole model, where the fast set was announced.
            replies[0].content[ARRAYS] = grid.replies_of(1)[0].content[ARRAYS]
        return replies

    grid = Recorder(make_app(), tamper=tamper)
    trace = federate(wrap(coefficient_period=4), grid, 3)
    (rejection,) = trace.reports[1].train.rejections
    assert "array names differ" in rejection.reason
    assert downloads(grid, 3)[2] == [0]


def test_arrays_changed_by_a_wrapper_outside_are_a_new_version() -> None:
    """Noise on the whole model, say, makes the held coefficients stale."""

    class Shifted(FilterDecomposition):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if server_round == 2:
                changed = type(arrays)(dict(arrays))
                moved = arrays[COEFFICIENTS].numpy() + 1
                changed[COEFFICIENTS] = type(arrays)([moved])["0"]
                arrays = changed
            return arrays, metrics

    grid = Recorder(make_app())
    federate(Shifted(no_evaluation(), GROUPS, coefficient_period=9), grid, 4)
    assert [len(clients) for clients in downloads(grid, 4)] == [4, 4, 4, 0]


def test_evaluation_sends_the_whole_model_and_changes_no_standing() -> None:
    costs = []
    for every in (1, 3):
        inner = FedAvg(min_available_nodes=1, evaluate_every=every, clients_per_round=2)
        grid = Recorder(make_app())
        trace = federate(wrap(inner, coefficient_period=3), grid, 6)
        costs.append([r.metrics["true_bytes_down"] for r in trace.reports])
        for message in grid.of_round(3, EVALUATE):
            (arrays,) = arrays_in(message).values()
            assert bits(arrays) == bits(trace.arrays[2])
        assert len(grid.of_round(3, EVALUATE)) == CLIENTS
        assert trace.reports[2].metrics["evaluate_loss"] > 0
    assert costs[0] == costs[1]


# --------------------------------------------------------------------- local coefficients


def starts_and_gradients(mode: Any, num_rounds: int) -> tuple[Trace, Any, Any, Recorder]:
    starts: dict[int, dict[str, np.ndarray]] = {}
    ends: dict[int, dict[str, np.ndarray]] = {}
    gradients: dict[int, set[str]] = {}

    class Spy(FedAvgClient):
        def before_step(self, model: Any) -> None:
            named = model.named_parameters()
            self.seen = {n for n, p in named if p.grad is not None}

        def on_train(self, request: Request) -> Reply:
            reply = super().on_train(request)
            if self.client_id == 0:
                starts[request.server_round] = dict(request.arrays[ARRAYS])
                ends[request.server_round] = dict(reply.arrays[ARRAYS])
                gradients[request.server_round] = self.seen
            return reply

    grid = Recorder(make_app(Spy, reuse=True))
    strategy = wrap(coefficient_period=4, local_coefficients=mode)
    trace = federate(strategy, grid, num_rounds)
    return trace, (starts, ends), gradients, grid


def test_discard_starts_from_the_received_coefficients() -> None:
    trace, (starts, ends), gradients, _ = starts_and_gradients("discard", 5)
    for server_round in (2, 3, 4, 5):
        np.testing.assert_array_equal(
            starts[server_round][COEFFICIENTS], trace.arrays[0][COEFFICIENTS]
        )
        assert gradients[server_round] == set(initial())
        assert not np.array_equal(
            ends[server_round][COEFFICIENTS], starts[server_round][COEFFICIENTS]
        )


def test_freeze_trains_the_fast_set_alone_between_uploads() -> None:
    _, (starts, ends), gradients, _ = starts_and_gradients("freeze", 5)
    assert gradients[1] == gradients[5] == set(initial())
    for server_round in (2, 3, 4):
        assert gradients[server_round] == set(FAST)
        for name in SLOW_NAMES:
            np.testing.assert_array_equal(
                ends[server_round][name], starts[server_round][name]
            )
    assert not np.array_equal(ends[5][COEFFICIENTS], starts[5][COEFFICIENTS])


def test_persist_goes_on_from_the_clients_own_up_to_the_upload() -> None:
    trace, (starts, ends), _, grid = starts_and_gradients("persist", 6)
    for name in SLOW_NAMES:
        np.testing.assert_array_equal(starts[2][name], trace.arrays[0][name])
        for server_round in (3, 4, 5):
            np.testing.assert_array_equal(
                starts[server_round][name], ends[server_round - 1][name]
            )
        np.testing.assert_array_equal(starts[6][name], trace.arrays[4][name])
    uploaded = arrays_in(grid.replies_of(5)[0])[ARRAYS]
    assert bits(uploaded) == bits(ends[5])


def test_frozen_parameters_are_trained_again_afterwards() -> None:
    """All clients share one model: what one client froze must not stay frozen."""
    trace, *_ = starts_and_gradients("freeze", 5)
    assert changes(trace, COEFFICIENTS) == [1, 5]


def test_freeze_atoms_keeps_them_at_their_start() -> None:
    """Control C2."""
    trace = federate(wrap(freeze_atoms=True), Recorder(make_app()), 3)
    assert changes(trace, ATOMS) == []
    assert changes(trace, COEFFICIENTS) == [1, 2, 3]


# ------------------------------------------------------------------ strategies and clients


def test_server_momentum_remembers_the_slow_arrays_step() -> None:
    """All move by 1; velocity 1, 1.5, 1.75 on fast arrays; 1, 1.5 at slow ones' uploads."""
    strategy = wrap(no_evaluation(server_momentum=0.5), coefficient_period=2)
    trace = federate(strategy, Recorder(make_app(Told)), 3)
    for name, moved in ((ATOMS, 4.25), (COEFFICIENTS, 2.5)):
        expected = initial()[name] + moved
        np.testing.assert_allclose(trace.arrays[2][name], expected, rtol=1e-6)


def test_fedprox_inside() -> None:
    def final(mu: float) -> dict[str, bytes]:
        inner = FedProx(proximal_mu=mu, min_available_nodes=1, fraction_evaluate=0.0)
        grid = Recorder(make_app(FedProxClient))
        trace = federate(wrap(inner, coefficient_period=2), grid, 3)
        assert not total(trace, "replies_rejected")
        return bits(trace.arrays[-1])

    plain = federate(wrap(coefficient_period=2), Recorder(make_app()), 3)
    assert final(0.0) == bits(plain.arrays[-1]) != final(1.0)


class Counting(Told):
    """Keeps how often it was trained, and moves by that."""

    def on_train(self, request: Request) -> Reply:
        state = self.load_state(request)
        times = (0.0 if state is None else float(state["times"][0])) + 1
        self.move = lambda k, server_round, name: times  # type: ignore[method-assign]
        reply = super().on_train(request)
        kept = {"times": np.array([times])}
        stored = self.save_state(request, kept)
        kept["times"][:] = -1  # What is stored stays as it was.
        return Reply(reply.arrays, {**reply.metrics, **stored})


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("personal", [False, True])
def test_state_of_the_client_inside_survives(personal: bool, reuse: bool) -> None:
    strategy = wrap(coefficient_period=2, personal_atoms=personal)
    store = MemoryStore()
    trace = federate(strategy, Recorder(make_app(Counting, store=store, reuse=reuse)), 3)
    expected = initial()[ATOMS] + 1 + 2 + 3
    np.testing.assert_allclose(trace.arrays[2][ATOMS], expected, rtol=1e-6)
    for k in range(CLIENTS):
        version = strategy.client_versions[1000 + k]
        assert store.load(k, version)["inner/times"] == [3.0]


def test_only_a_client_with_something_new_stores_it() -> None:
    strategy = wrap(coefficient_period=3)
    federate(strategy, Recorder(make_app()), 4)
    assert set(strategy.client_versions.values()) == {"2.1"}


def test_layouts_give_the_same_bits_and_costs() -> None:
    """Nodes of one client, and two nodes of two clients."""
    found = []
    for nodes, options in (
        (CLIENTS, {}),
        (CLIENTS, {"identity": "partition", "num_clients": CLIENTS}),
        (2, {"identity": "partition", "num_clients": CLIENTS}),
    ):
        grid = Recorder(make_app(), nodes)
        strategy = wrap(no_evaluation(**options), coefficient_period=2)
        trace = federate(strategy, grid, 4)
        costs = [total(trace, f"true_bytes_{way}") for way in ("down", "up")]
        found.append((bits(trace.arrays[-1]), costs))
    assert found[0] == found[1] == found[2]


class Bold(Told):
    """Moves slow arrays by far more than fast ones."""

    move = staticmethod(lambda k, server_round, name: 1e-3 if name in FAST else 1e3)


def test_privacy_clips_what_leaves() -> None:
    """Of arrays that stay at home no part is clipped: the others keep their change."""
    privacy = PrivacyOptions(dp_noise_multiplier=1e-12, dp_clip=1.0)
    grid = Recorder(make_app(Bold, privacy=privacy))
    trace = federate(wrap(coefficient_period=2), grid, 2)
    first, second = (arrays[ATOMS] for arrays in trace.arrays)
    np.testing.assert_allclose(first, initial()[ATOMS], atol=1e-5)
    np.testing.assert_allclose(second - first, 1e-3, atol=1e-6)


# ------------------------------------------------------------------------------- refusals


def test_strategies_of_flower_need_no_wrapper() -> None:
    with pytest.raises(TypeError, match=r"flwr\.\S+FedAvg: the base variant.*no wrapper"):
        FilterDecomposition(flower.FedAvg(), GROUPS)  # type: ignore[arg-type]


def test_a_method_that_corrects_gradients_needs_frozen_coefficients() -> None:
    inner = FedEBAPlus(min_available_nodes=1, fraction_evaluate=0.0)
    with pytest.raises(ConfigError, match=r"sends fair-gradient .* 'freeze'"):
        federate(wrap(inner, coefficient_period=2), Recorder(make_app(FedEBAPlusClient)), 2)


def test_a_strategy_is_wrapped_once() -> None:
    inner = no_evaluation()
    wrap(inner)
    with pytest.raises(ValueError, match="FedAvg has a wrapper already"):
        wrap(inner)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coefficient_period": 0}, "the first at least 1"),
        ({"personal_epochs": -1}, "personal_epochs = -1"),
        ({"fast_set": "head"}, "fast_set = 'head': expected one of"),
        ({"local_coefficients": "drop"}, "local_coefficients = 'drop'"),
        ({"groups": ParameterGroups(head=("a",), other=())}, "no decomposed layer"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrap(**options)


def test_legacy_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="legacy clients"):
        wrap(no_evaluation(wire="numpy"), coefficient_period=2)


def test_a_method_without_a_shared_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="Standalone is none"):
        federate(
            wrap(Standalone(min_available_nodes=1), coefficient_period=2),
            Recorder(make_app()),
            1,
        )


def test_an_unwrapped_client_is_refused() -> None:
    """It would train and be scored with whatever its memory holds."""
    grid = Recorder(make_app(wrapped=False))
    with pytest.raises(RunError, match="array names differ"):
        federate(wrap(no_evaluation(max_failed_rounds=1), coefficient_period=2), grid, 1)
    with pytest.raises(RunError, match="wrap the client in DecomposedClient"):
        federate(wrap(no_evaluation(max_failed_rounds=1), personal_atoms=True), grid, 1)


def test_a_wrapped_client_needs_the_wrapped_strategy() -> None:
    with pytest.raises(RunError, match="wrap the strategy in FilterDecomposition"):
        federate(no_evaluation(max_failed_rounds=1), Recorder(make_app()), 1)


def test_a_client_that_does_not_hold_what_the_server_thinks() -> None:
    """The server is told that all hold version 0; none does."""
    strategy = wrap(no_evaluation(max_failed_rounds=1), coefficient_period=2)
    held = {"held-by": [1000 + k for k in range(CLIENTS)], "held-versions": [0] * CLIENTS}
    strategy.restore({}, {"slow-version": 0, **held})
    words = r"counts on version 0 of 4 slow arrays, held is version -1 of 0"
    with pytest.raises(RunError, match=words):
        federate(strategy, Recorder(make_app()), 1)


def test_a_checkpoint_right_after_an_upload_knows_of_the_new_version() -> None:
    """Whether or not the round is evaluated: resumed, it sends the new arrays to all."""
    strategy = wrap(coefficient_period=3)
    trace = federate(strategy, Recorder(make_app()), 1)
    resumed = wrap(coefficient_period=3)
    resumed.restore(*strategy.state())
    resumed.client_versions = dict(strategy.client_versions)
    grid = Recorder(make_app())
    federate(resumed, grid, 1, trace.arrays[0])
    assert downloads(grid, 1) == [[0, 1, 2, 3]]
