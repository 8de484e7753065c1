"""CFFL: the golden round, FedAvg at its extreme, and what clients keep and are sent."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.reward.cffl import CFFLClient
from fedsuite.core.errors import RunError
from fedsuite.core.vectors import top_k
from fedsuite.messages.records import Arrays, Request
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.reward.cffl import (
    CFFL,
    code_reputation,
    paper_reputation,
    reputable,
    reward_counts,
)
from fedsuite.strategies.reward.reputation import shares_of
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import Matrix, samples, set_metrics
from tests.strategies.reward.rewards import Judge, Rewarded, federate, options
from tests.strategies.reward.tiny_network import federate as on_a_network

GOLDEN = (
    (0.02, -0.004, 0.001, 0.0),
    (0.03, 0.01, -0.002, 0.001),
    (0.008, 0.02, -0.05, 0.004),
)
COUNTS = (10, 20, 30)
ACCURACIES = np.array([0.4, 0.6, 0.8])
SLOW = TrainingOptions(local_steps=2, batch_size=0, learning_rate=0.1)


def cffl(rounds: int, judge: Judge, rows=GOLDEN, **changes: Any) -> Rewarded:
    run = {
        name: changes.pop(name)
        for name in ("counts", "training", "tamper", "tampered_rounds", "store")
        if name in changes
    }
    strategy = CFFL(validation=judge, **options(len(rows), **changes))
    return federate(strategy, CFFLClient, rows, rounds, **run)


def test_golden_round() -> None:
    found = cffl(
        1,
        Judge((0.4, 0.6, 0.8)),
        counts=COUNTS,
        upload_share=0.5,
        cffl_reputation="code",
    )
    reputation = found.column("reputation", 1)
    assert reputation == pytest.approx([0.219057, 0.331966, 0.448977], abs=1e-6)
    server = found.trace.arrays[0]["weight"].reshape(-1)
    assert server == pytest.approx([0.005, 0.007667, -0.005, 0], abs=1e-6)
    assert found.column("reward_share", 1) == [0, 0.25, 1]
    expected = [
        [0.006667, -0.002667, 0.001, 0],
        [0.003333, 0.011, -0.002, 0.001],
        [0.013, 0.007667, -0.005, 0.004],
    ]
    np.testing.assert_allclose(found.models(1), expected, atol=1e-6)


def test_uploads_are_judged_on_the_servers_model() -> None:
    """g = top 2 of the clipped update; the server's model is 0 in the first round."""
    judge = Judge((0.4, 0.6, 0.8))
    cffl(1, judge, counts=COUNTS, upload_share=0.5)
    seen = [arrays["weight"].reshape(-1) for arrays in judge.seen]
    expected = [[0.01, -0.004, 0, 0], [0.01, 0.01, 0, 0], [0, 0.01, -0.01, 0]]
    np.testing.assert_allclose(seen, expected, atol=1e-7)


def test_reputations_of_paper_and_code() -> None:
    third = np.full(3, 1 / 3)
    fresh = shares_of(np.sinh(5 * shares_of(ACCURACIES)))
    assert fresh == pytest.approx([0.159951, 0.301508, 0.538542], abs=1e-6)
    paper = paper_reputation(third, ACCURACIES, 5)
    assert paper == pytest.approx([0.246642, 0.317421, 0.435937], abs=1e-6)
    code = code_reputation(np.zeros(3), ACCURACIES, 5)
    assert code == pytest.approx([0.219057, 0.331966, 0.448977], abs=1e-6)


def test_a_newcomer_starts_with_what_an_average_client_has() -> None:
    """Old shares 1 and 1 / 2 are 2 / 3 and 1 / 3; equal accuracies are 1 / 2 each."""
    strategy = CFFL(validation=Judge())
    strategy.reputation = {0: 1.0}
    found = strategy.new_shares([0, 7], np.array([0.8, 0.8]))
    assert found == pytest.approx([7 / 12, 5 / 12])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(np.array))
def test_reputations_sum_to_1_and_follow_accuracies(accuracies: np.ndarray) -> None:
    old = np.full(accuracies.size, 1 / accuracies.size)
    order = np.argsort(accuracies, kind="stable")
    for reputation in (paper_reputation, code_reputation):
        found = reputation(old, accuracies, 5.0)
        assert found.sum() == pytest.approx(1)
        assert (np.diff(found[order]) >= -1e-12).all()


def test_who_is_below_the_threshold_is_out_and_the_others_share() -> None:
    known = {0: 0.1, 1: 0.3, 2: 0.6}
    left, out = reputable(known, 1 / 3 + 0.01)
    assert (left, out) == (pytest.approx({1: 1 / 3, 2: 2 / 3}), {0})
    assert reputable(known, 0.29) == (pytest.approx(known), set())
    assert reputable({0: 0.5, 1: 0.5}, 1.0) == ({0: 0.5, 1: 0.5}, set())
    for third in (1 / 3, np.nextafter(1 / 3, 0)):
        assert reputable(dict.fromkeys(range(3), third), 1.0)[1] == set()


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0.01, 1), st.integers(1, 500)), min_size=1, max_size=6),
)
def test_rewards_are_counts_and_the_better_client_never_gets_less(
    size: int, clients: list[tuple[float, int]]
) -> None:
    reputation, examples = (
        np.array(column, dtype=float) for column in zip(*clients, strict=True)
    )
    counts = reward_counts(size, reputation, examples)
    assert all(0 <= count <= size for count in counts)
    worth = list(zip(reputation, examples, counts, strict=True))
    for r, n, count in worth:
        assert all(count >= less for s, m, less in worth if s <= r and m <= n)
    if reputation.argmax() == examples.argmax():
        assert max(counts) == size


def test_everything_open_is_fedavg() -> None:
    """All entries up, no clipping, no threshold, equal clients: w_g for all, each round."""
    judge = Judge((0.5,))
    rows = ((1.0, 2, 3, 4), (-1.0, 0.5, 2, 0), (0.0, 3, 1, 1))
    ways = {"training": SLOW}
    open_to_all = {"upload_share": 1.0, "cffl_clip": 0.0, "cffl_threshold": 0.0}
    found = cffl(3, judge, rows, **ways, **open_to_all)
    plain = federate(FedAvg(**options(3)), FedAvgClient, rows, 3, training=SLOW)
    for server_round in (1, 2, 3):
        average = plain.trace.arrays[server_round - 1]["weight"].reshape(-1)
        server = found.trace.arrays[server_round - 1]["weight"].reshape(-1)
        np.testing.assert_allclose(server, average, rtol=1e-5)
        np.testing.assert_allclose(found.models(server_round), [average] * 3, rtol=1e-5)
    assert found.column("reward_share", 3) == [1, 1, 1]


def by_the_equations(
    rounds: int, judge: Judge, rows: Any, counts: Any, alpha: float, coefficient: float
) -> tuple[list[list[float]], dict[int, float]]:
    """The paper's reputations, a third uploaded (1 of 4), clip 0.05, in plain loops."""
    number = range(len(rows))
    models, server = [np.zeros(4) for _ in number], np.zeros(4)
    r = {k: 1 / len(rows) for k in number}
    for _ in range(rounds):
        ups = {}
        for k in number:
            step = 0.19 * (np.array(rows[k]) - models[k])
            step = np.clip(step, -0.05, 0.05)
            models[k] = models[k] + step
            ups[k] = top_k(step, 1)
        a = {k: judge.accuracy({"w": server + ups[k]}) for k in r}
        c = {k: np.sinh(alpha * a[k] / sum(a.values())) for k in r}
        r = {k: 0.5 * r[k] + 0.5 * c[k] / sum(c.values()) for k in r}
        r = {k: value for k, value in r.items() if value >= coefficient / len(r)}
        r = {k: value / sum(r.values()) for k, value in r.items()}
        total = sum(counts[k] / sum(counts) * ups[k] for k in r)
        server = server + total
        most = max(counts[k] for k in r)
        for k in r:
            rho = counts[k] / most
            q = int(4 * (r[k] / max(r.values())) * rho + 1e-9)
            models[k] = models[k] + top_k(total, q) - rho * ups[k]
    return [model.tolist() for model in models], r


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_later_rounds_go_on_from_what_is_kept_and_rewarded(rounds: int) -> None:
    """The third client is out from the second round on, and trains alone."""
    rows = ((1.0, 0.1, 0.3, 0.2), (0.8, -0.2, 0.5, 0.4), (-3.0, 1.0, 1.0, 2.0))

    class Sharp(Judge):
        def accuracy(self, arrays: Arrays) -> float:
            return float(np.exp(-4 * self.loss(arrays) + 12))

    judge = Sharp(goal=(2.0, 0, 0, 0))
    keys = {"upload_share": 0.33, "cffl_clip": 0.05, "cffl_alpha": 5.0}
    found = cffl(
        rounds, judge, rows, counts=(1, 2, 3), training=SLOW, cffl_threshold=0.9, **keys
    )
    models, reputation = by_the_equations(rounds, judge, rows, (1, 2, 3), 5.0, 0.9)
    np.testing.assert_allclose(found.models(rounds), models, atol=1e-6)
    strategy = found.strategy
    assert isinstance(strategy, CFFL)
    assert strategy.reputation == pytest.approx(reputation)
    assert strategy.excluded == {0, 1, 2} - set(reputation)
    assert strategy.excluded


def test_who_is_out_trains_alone() -> None:
    """And without clipping as Standalone does."""
    rows = ((1.0, 1, 1, 1), (0.9, 1, 1, 1), (-2.0, -2, -2, -2))
    judge = Judge((0.9, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9))
    keys = {"upload_share": 1.0, "cffl_clip": 0.0, "cffl_threshold": 0.6}
    found = cffl(3, judge, rows, training=SLOW, **keys)
    assert found.strategy.excluded == {2}
    assert found.column("reputation", 3)[2] == 0
    alone = federate(Standalone(**options(3)), StandaloneClient, rows, 3, training=SLOW)
    assert found.models(3)[2] == pytest.approx(alone.models(3)[2], rel=1e-6)
    assert found.models(3)[0] != pytest.approx(alone.models(3)[0], rel=1e-2)


def test_the_wire_holds_a_part_of_the_update() -> None:
    """A byte of bits and two values up; the model down once, then rewards."""
    found = cffl(2, Judge((0.4, 0.6, 0.8)), counts=COUNTS, upload_share=0.5)
    reports = [report.train for report in found.trace.reports]
    assert [report.bytes_up for report in reports] == [3 * (1 + 2 * 4)] * 2
    assert reports[0].bytes_down == 3 * 16
    assert 0 < reports[1].bytes_down < 3 * (1 + 16)


def test_a_lost_reply_leaves_its_client_where_it_was() -> None:
    """Its training of the round is undone, its reward still to come."""
    keys = {"counts": COUNTS, "upload_share": 0.5, "training": SLOW}
    rounds = [cffl(n, Judge(), **keys) for n in (1, 2)]

    def drop(replies: list[Message]) -> list[Message]:
        set_metrics(num_examples=float("nan"))(replies[1].content, "client-1.")
        return replies

    lost = cffl(2, Judge(), tamper=drop, tampered_rounds=(2,), **keys)
    assert lost.models(2)[1] == rounds[0].models(1)[1]
    assert lost.models(2)[0] != rounds[1].models(2)[0]
    three = cffl(3, Judge(), tamper=drop, tampered_rounds=(2,), **keys)
    assert three.models(3)[1] != lost.models(2)[1]


def test_a_reward_is_not_applied_twice() -> None:
    """A reply without examples counts for nothing, but its client took the reward."""

    def empty(replies: list[Message]) -> list[Message]:
        set_metrics(num_examples=0)(replies[1].content, "client-1.")
        return replies

    store = MemoryStore()
    keys = {"counts": COUNTS, "upload_share": 0.5, "training": SLOW, "store": store}
    found = cffl(2, Judge(), tamper=empty, tampered_rounds=(2,), **keys)
    kept = store.load(1, found.strategy.client_versions[1])["weight"]
    assert found.strategy.client_versions[1] == "2.1"
    assert found.models(2)[1] == kept.reshape(-1).tolist()


def test_who_is_out_keeps_its_own_statistics() -> None:
    judge = Judge((0.9, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9))
    keys = {"validation": judge, "cffl_threshold": 0.6, "upload_share": 1.0}
    _, watch = on_a_network(CFFL(**options(3), **keys), CFFLClient, 2)
    for k, name in ((0, "norm.running_mean"), (2, "norm.running_mean")):
        own = watch.answered[2, k]["statistics"][name]
        assert (watch.scored[2, k][name].tolist() == own.tolist()) == (k == 2)
    told = [watch.answered[t, 2]["statistics"]["norm.num_batches_tracked"] for t in (1, 2)]
    assert [int(count) for count in told] == [3, 6]


def test_a_client_without_a_model_says_so() -> None:
    data = samples(1.0, 1)
    client = CFFLClient(Matrix(), data, data)
    config = {"update-names": ["weight"], "upload-count": 1, "clip": 0.0}
    with pytest.raises(RunError, match="holds no model to start from"):
        client.answer(Request("train", 0, {}, config))
    with pytest.raises(RunError, match="does not say which arrays are trained"):
        client.answer(Request("train", 0, {}, {}))


def test_the_state_kept_is_all_of_the_update() -> None:
    store = MemoryStore()
    found = cffl(1, Judge((0.5,)), store=store, upload_share=0.25)
    kept = [store.load(k, found.strategy.client_versions[k])["weight"] for k in range(3)]
    expected = np.clip(GOLDEN, -0.01, 0.01).reshape(3, 2, 2)
    np.testing.assert_allclose(kept, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upload_share", 0.0),
        ("upload_share", 1.1),
        ("cffl_clip", -1.0),
        ("cffl_alpha", 0.0),
        ("cffl_threshold", 1.5),
        ("cffl_reputation", "both"),
    ],
)
def test_bad_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} = {value!r}: expected"):
        CFFL(validation=Judge(), **{name: value})
