"""FedAKD's orders and ablations, and that none of them touches a test sample."""

from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, SELECTED, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.aggregation import weighted_mean
from fedsuite.training.loop import TrainingOptions
from tests.clients.distillation.teaching import (
    ONE_STEP,
    client,
    data,
    hits,
    kept,
    normalised,
    plain,
    received,
    seeded,
    train,
)
from tests.helpers import bits


def test_all_data_without_a_teacher_is_fedavg() -> None:
    shared = received(plain)
    reply = train(
        client(plain, training=ONE_STEP),
        shared,
        fedakd_ablation="all-data",
        local_to_global_weight=0.0,
    )
    usual = train(client(plain, training=ONE_STEP, client_class=FedAvgClient), shared)
    for name, array in usual.arrays[ARRAYS].items():
        np.testing.assert_allclose(reply.arrays[ARRAYS][name], array, atol=1e-6)


def test_all_data_equals_the_whole_method_where_all_is_right() -> None:
    split = Split(torch.eye(4)[:3].repeat(5, 1), torch.arange(3).repeat(5))
    strong = TrainingOptions(batch_size=4, local_epochs=30, learning_rate=1.0)
    full = train(client(plain, training=strong, split=split), received(plain))
    all_data = train(
        client(plain, training=strong, split=split),
        received(plain),
        fedakd_ablation="all-data",
    )
    assert full.metrics[SELECTED] == len(split)
    assert full.metrics == all_data.metrics
    assert bits(dict(full.arrays[ARRAYS])) == bits(dict(all_data.arrays[ARRAYS]))


def test_all_data_trains_on_all_of_it() -> None:
    who = client()
    reply = train(who, received(), fedakd_ablation="all-data")
    assert who.rows == [None, None]
    assert reply.metrics[SELECTED] == len(data())


def test_single_dist_overwrites_the_local_model() -> None:
    who, shared = client(), received()
    reply = train(who, shared, fedakd_ablation="single-dist")
    assert bits(kept(who)) == bits(shared)
    assert who.rows == [hits(normalised, shared, data())]
    assert "local-loss" not in reply.metrics


def test_correct_agg_changes_nothing_on_the_client() -> None:
    usual = train(client(), received())
    ablated = train(client(), received(), fedakd_ablation="correct-agg")
    assert usual.metrics == ablated.metrics
    assert bits(dict(usual.arrays[ARRAYS])) == bits(dict(ablated.arrays[ARRAYS]))


def play(
    order: str, rounds: range, build: Any, *, ignored: tuple[int, ...] = ()
) -> list[dict[str, bytes]]:
    """Return the global model after each round; ``ignored`` rounds do not average."""
    clients = [
        client(build, split=data(seed, 20 + 9 * seed), client_id=seed) for seed in (0, 1)
    ]
    shared, found = model_arrays(seeded(build, 0)), []
    for server_round in rounds:
        start = f"{server_round - 1}.1" if server_round > rounds[0] else ""
        work = {"fedakd_order": order, "global_to_local_weight": 0.3}
        replies = [train(who, shared, server_round, start, **work) for who in clients]
        if server_round not in ignored:
            sizes = [len(who.train_data) for who in clients]
            mean = weighted_mean((dict(r.arrays[ARRAYS]) for r in replies), sizes)
            assert mean is not None
            shared = mean
            found.append(bits(shared))
    return found


@pytest.mark.parametrize("build", [plain, normalised])
def test_orders_differ_by_the_first_half_round_alone(build: Any) -> None:
    """The authors' T rounds, without the first average, are the paper's T - 1."""
    code = play("code", range(1, 5), build, ignored=(1,))
    assert code == play("paper", range(2, 5), build)
    # The half round counts: without it left out, the models differ.
    assert play("code", range(1, 5), build)[1:] != code


def test_authors_order_first_takes_all_samples_from_the_initial_teacher() -> None:
    who = client()
    reply = train(who, received(), fedakd_order="code")
    assert who.rows == [None]
    assert reply.metrics[SELECTED] == len(data())
    initial = model_arrays(seeded(normalised, 0))
    assert bits(who.teachers[0][0]) == bits(initial) == bits(kept(who))
    train(who, received(), 2, start="1.1", fedakd_order="code")
    assert len(who.rows) == 3 and who.rows[1] is None and who.rows[2] is not None


class Alarm(Split):
    """Test data that raises as soon as a sample of it is touched."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("features", "labels"):
            raise AssertionError("a test sample was touched")
        return super().__getattribute__(name)


@pytest.mark.parametrize("order", ["paper", "code"])
@pytest.mark.parametrize("ablation", ["none", "all-data", "single-dist", "correct-agg"])
def test_no_test_sample_is_touched_in_training_or_selection(
    order: str, ablation: str
) -> None:
    who = client()
    who.test_data = Alarm(*(torch.zeros(1, 4), torch.zeros(1).long()))
    for server_round, start in ((1, ""), (2, "1.1")):
        work = {"fedakd_order": order, "fedakd_ablation": ablation}
        train(who, received(), server_round, start, **work)
    with pytest.raises(AssertionError, match="test sample"):
        who.answer(Request("evaluate", 0, {ARRAYS: received()}, {}))
