"""FedPer, FedRep, LG-FedAvg: two clients by hand, identities, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.personal.fedrep import FedRepClient
from fedsuite.clients.personal.partial import PartialClient
from fedsuite.messages.records import ARRAYS
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.decomposition.fedpara import PFedPara
from fedsuite.strategies.personal.fedper import FedPer
from fedsuite.strategies.personal.fedrep import FedRep
from fedsuite.strategies.personal.lg_fedavg import LGFedAvg
from fedsuite.training.store import MemoryStore
from tests.helpers import aggregated, bits
from tests.strategies.personal.products import GROUPS, HALF_STEP, TWO, numbers, play


def stored(store: MemoryStore, version: str) -> list[float]:
    """Return the one number that each of the two clients keeps."""
    return [numbers(store.load(client, version))[0] for client in range(2)]


# ---- two clients, two rounds, by hand


def test_fedper_by_hand() -> None:
    """Body 1 -> (2, 0.5) -> 7/8; then from (7/8, 2) and (7/8, 1/2)."""
    store = MemoryStore()
    trace = play(FedPer(**TWO), PartialClient, store=store)
    assert [numbers(arrays) for arrays in trace.arrays] == [[0.875, 1.0], [1.10546875, 1.0]]
    assert stored(store, "2.1") == [2.546875, 0.30859375]
    assert [r.metrics["shared_parameters"] for r in trace.reports] == [1, 1]


def test_fedrep_by_hand() -> None:
    """Head first: v = (2, 1/2), then u = (2, 7/8), body (2 + 3 * 7/8) / 4."""
    store = MemoryStore()
    strategy = FedRep(**TWO, head_epochs=1)
    trace = play(strategy, FedRepClient, 1, store=store, training=HALF_STEP)
    assert numbers(trace.arrays[0]) == [1.15625, 1.0]
    assert stored(store, "1.1") == [2.0, 0.5]
    assert [row["num_steps"] for row in trace.reports[0].train.rows] == [2, 2]
    # Losses before each step: (2, 1/2) and (1/2, 1/8).
    assert [row["loss"] for row in trace.reports[0].train.rows] == [1.25, 0.3125]


@pytest.mark.parametrize(("head_epochs", "body_epochs"), [(1, 1), (3, 2), (0, 2), (2, 0)])
def test_fedrep_rounds_follow_the_equations(head_epochs: int, body_epochs: int) -> None:
    store = MemoryStore()
    strategy = FedRep(**TWO, head_epochs=head_epochs)
    work = {"local_epochs": body_epochs, "local_steps": 0}
    training = replace(HALF_STEP, learning_rate=0.125, momentum=0.5, **work)
    trace = play(strategy, FedRepClient, 3, store=store, training=training)
    body, heads = 1.0, [1.0, 1.0]
    for _ in range(3):
        bodies = []
        for client, label in enumerate((3, 0)):
            u, v, speed = body, heads[client], 0.0
            for _ in range(head_epochs):
                speed = 0.5 * speed + (u * v - label) * u
                v -= 0.125 * speed
            speed = 0.0
            for _ in range(body_epochs):
                speed = 0.5 * speed + (u * v - label) * v
                u -= 0.125 * speed
            heads[client] = v
            bodies.append(u)
        body = (bodies[0] + 3 * bodies[1]) / 4
    assert numbers(trace.arrays[-1]) == pytest.approx([body, 1.0], rel=1e-5)
    assert stored(store, "3.1") == pytest.approx(heads, rel=1e-5)


def test_lg_fedavg_by_hand() -> None:
    """Head 1 -> (2, 1/2), plain mean 5/4; then from (2, 5/4) and (1/2, 5/4)."""
    store = MemoryStore()
    trace = play(LGFedAvg(**TWO), PartialClient, store=store)
    assert [numbers(arrays) for arrays in trace.arrays] == [[1.0, 1.25], [1.0, 1.421875]]
    assert stored(store, "2.1") == pytest.approx([2.3125, 0.109375], rel=1e-6)


# ---- identities

ALL_SHARED = ParameterGroups(
    head=(), other=("0.weight", "1.weight"), layers=(("0.weight",), ("1.weight",))
)
NONE_SHARED = ParameterGroups(head=("0.weight", "1.weight"), other=())


def test_nothing_personal_is_fedavg() -> None:
    options = {k: v for k, v in TWO.items() if k != "groups"}
    expected = play(FedAvg(**options), FedAvgClient, 3)
    trace = play(FedPer(**{**TWO, "groups": ALL_SHARED}), PartialClient, 3)
    rep = FedRep(**{**TWO, "groups": ALL_SHARED}, head_epochs=5)
    repeated = play(rep, FedRepClient, 3)
    for found in (trace, repeated):
        assert [bits(a) for a in found.arrays] == [bits(a) for a in expected.arrays]
    alike = play(FedAvg(**options), FedAvgClient, 3, counts=(2, 2))
    lg = LGFedAvg(**{**TWO, "groups": ALL_SHARED}, shared_layers=2)
    plain = play(lg, PartialClient, 3, counts=(2, 2))
    assert [bits(a) for a in plain.arrays] == [bits(a) for a in alike.arrays]


def test_nothing_shared_is_standalone() -> None:
    options = {k: v for k, v in TWO.items() if k != "groups"}
    expected = MemoryStore()
    play(Standalone(**options), StandaloneClient, 3, store=expected)
    strategies = [
        FedPer(**{**TWO, "groups": NONE_SHARED}),
        LGFedAvg(**TWO, shared_layers=0),
    ]
    for strategy in strategies:
        store = MemoryStore()
        trace = play(strategy, PartialClient, 3, store=store)
        assert numbers(trace.arrays[-1]) == [1.0, 1.0]
        assert not trace.reports[0].train.rejections
        assert trace.reports[-1].metrics["bytes_up"] == 0
        for client in range(2):
            found = store.load(client, "3.1")
            assert bits(found) == bits(expected.load(client, "3.1"))


def test_fedrep_without_head_training_keeps_the_initial_head() -> None:
    """Then it is FedAvg on the body with a fixed head."""
    store = MemoryStore()
    trace = play(FedRep(**TWO, head_epochs=0), FedRepClient, 1, store=store)
    assert stored(store, "1.1") == [1.0, 1.0]
    assert numbers(trace.arrays[0]) == [0.875, 1.0]


@given(st.data())
def test_shared_and_personal_make_the_whole(data: st.DataObject) -> None:
    """Whatever the groups and the part of the model that a wrapper lets through."""
    names = data.draw(st.lists(st.text("abc", min_size=1), unique=True, min_size=1))
    cut = data.draw(st.integers(0, len(names)))
    layers = tuple((name,) for name in names)
    groups = ParameterGroups(tuple(names[cut:]), tuple(names[:cut]), layers=layers)
    passed = [name for name in names if data.draw(st.booleans())]
    arrays = {name: np.array([float(i)]) for i, name in enumerate(passed)}
    for strategy, expected in (
        (FedPer(groups=groups), names[:cut]),
        (LGFedAvg(groups=groups, shared_layers=len(names) - cut), names[cut:]),
    ):
        exchange = strategy.train_exchange(arrays, [0])
        assert list(exchange.shared[ARRAYS]) == [n for n in passed if n in expected]
        assert set(exchange.expected.arrays[ARRAYS]) == set(exchange.shared[ARRAYS])
        evaluation = strategy.evaluate_exchange(arrays, [0])
        assert list(evaluation.shared[ARRAYS]) == list(exchange.shared[ARRAYS])
        reply = {name: array + 1 for name, array in exchange.shared[ARRAYS].items()}
        replies = iter([ClientReply(0, {ARRAYS: reply}, {}, 2.0)])
        made = aggregated(strategy, arrays, replies)
        assert made is not None
        assert list(made) == passed
        for name, array in made.items():
            assert array[0] == arrays[name][0] + (name in expected)


# ---- refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LGFedAvg(groups=GROUPS, shared_layers=3), "expected 0 to 2"),
        (lambda: PFedPara(groups=GROUPS), "no second factors"),
    ],
)
def test_bad_options(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
