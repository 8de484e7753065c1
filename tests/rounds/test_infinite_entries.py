"""Entries that are infinite when sent stay so, and nothing else of a model may be."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from fedsuite.core.errors import RunError
from fedsuite.rounds.infinite_entries import InfiniteEntries
from fedsuite.strategies import (
    AFL,
    QFFL,
    FedAvg,
    FedBuff,
    FedEBA,
    FedFV,
    FedMGDAPlus,
    FedNova,
)
from tests.rounds.plain_app import final, plain_app, run_plain

INF = np.inf
MASK = np.triu(np.full((3, 3), -INF, np.float32), 1)
MODEL = {
    "w": np.zeros(2, np.float32),
    "mask": MASK,
    "half": np.array([INF, 0.0], np.float16),
    "none": np.zeros(0, np.float32),
    "one": np.array(-INF, np.float64),
    "counter": np.array(3, np.int64),
    "flags": np.array([True, False]),
}
METRICS = {
    "num-examples": 10,
    "loss-before": 1.0,
    "loss-after": 0.5,
    "num-steps": 2,
    "learning-rate": 0.1,
}


def step(number: int, arrays: Any) -> Any:
    moved = {"w": arrays["w"] + np.float32(1 + number)}
    return {**arrays, **moved}, METRICS


EVERYTHING: dict[str, Any] = {
    "mean": FedAvg,
    "rate": partial(FedAvg, server_learning_rate=0.5),
    "momentum": partial(FedAvg, server_momentum=0.5),
    "adam": partial(FedAvg, server_optimizer="adam"),
    "fedvarp": partial(FedAvg, fedvarp=True),
    "median": partial(FedAvg, aggregator="median", mix="nearest"),
    "trimmed": partial(FedAvg, aggregator="trimmed-mean", liars=1),
    "geometric": partial(FedAvg, aggregator="geometric-median"),
    "krum": partial(FedAvg, aggregator="multi-krum", liars=1),
    "norm": partial(FedAvg, max_update_norm="median x 0.5"),
    "no-norm": partial(FedAvg, max_update_norm=1e-3),
    "noise": partial(
        FedAvg, dp_noise_multiplier=0.1, dp_delta=0.01, server_learning_rate=2.0
    ),
    "fedbuff": partial(FedBuff, fedbuff_share=0.5),
    "fednova": FedNova,
    "qffl": QFFL,
    "fedfv": FedFV,
    "fedmgda": FedMGDAPlus,
    "afl": AFL,
    "fedeba": partial(FedEBA, server_learning_rate=0.5),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_they_stay_whatever_is_made_of_the_rest(name: str, tmp_path: Any) -> None:
    strategy = EVERYTHING[name](min_available_nodes=5)
    result = run_plain(strategy, plain_app(step), MODEL, 5, num_rounds=3)
    arrays = final(result)
    assert not strategy.reports["train"].rejections
    assert arrays["w"].all() and np.isfinite(arrays["w"]).all()
    for kept in ("mask", "half", "one"):
        infinite = np.isinf(MODEL[kept])
        assert np.array_equal(np.isinf(arrays[kept]), infinite)
        assert np.array_equal(arrays[kept][infinite], MODEL[kept][infinite])
        assert arrays[kept].dtype == MODEL[kept].dtype
    assert arrays["none"].shape == (0,)
    assert arrays["counter"] == 3 and arrays["counter"].dtype == np.int64
    assert arrays["flags"].tolist() == [True, False]
    norms = strategy.reports["train"].column("update_norm")
    assert np.isfinite(norms).all()


def test_other_entries_of_the_array_are_stepped() -> None:
    def train(number: int, arrays: Any) -> Any:
        return {"w": arrays["w"] + np.float32([2.0, 0.0])}, {"num-examples": 1}

    start = {"w": np.float32([0.0, -INF])}
    made = FedAvg(server_learning_rate=0.5)
    assert final(run_plain(made, plain_app(train), start))["w"].tolist() == [1.0, -INF]


@pytest.mark.parametrize("value", [np.nan, INF])
@pytest.mark.parametrize("place", [(0, 0), (0, 1)])
def test_another_infinity_or_sign_or_place_is_refused(
    value: float, place: tuple[int, int]
) -> None:
    def train(number: int, arrays: Any) -> Any:
        if number == 1:
            arrays["mask"][place] = value
        return arrays, {"num-examples": 1}

    made = FedAvg()
    result = run_plain(made, plain_app(train), {"mask": MASK})
    [rejection] = made.reports["train"].rejections
    assert "array mask: holds NaN or infinity" in rejection.reason
    assert np.array_equal(final(result)["mask"], MASK)


def test_where_all_clients_send_numbers_these_count() -> None:
    """As of a table of logarithms of counts, which start at the logarithm of 0."""

    def train(number: int, arrays: Any) -> Any:
        return {"w": np.float32([number, -INF])}, {"num-examples": 1}

    result = run_plain(FedAvg(), plain_app(train), {"w": np.float32([-INF, -INF])})
    assert final(result)["w"].tolist() == [1.0, -INF]


def test_where_one_client_has_the_infinity_the_mean_has_it() -> None:
    def train(number: int, arrays: Any) -> Any:
        return {"w": np.float32([-INF if number else 1.0])}, {"num-examples": 1}

    result = run_plain(FedAvg(), plain_app(train), {"w": np.float32([-INF])})
    assert final(result)["w"].tolist() == [-INF]


def test_a_model_of_nan_is_refused_before_anybody_trains() -> None:
    trained: list[int] = []

    def train(number: int, arrays: Any) -> Any:
        trained.append(number)
        return arrays, {"num-examples": 1}

    start = {"w": np.float32([1.0, np.nan])}
    with pytest.raises(RunError, match="array w of the model that is sent holds NaN"):
        run_plain(FedAvg(), plain_app(train), start)
    assert not trained


def test_clients_and_the_server_see_the_mask_itself() -> None:
    seen: list[np.ndarray] = []

    def look(number: int, arrays: Any) -> Any:
        seen.append(arrays["mask"])
        return {"num-examples": 1}

    scored: list[Any] = []

    def evaluate(server_round: int, record: Any) -> None:
        scored.append(record["mask"].numpy())

    run_plain(FedAvg(), plain_app(step, look), MODEL, evaluate_fn=evaluate)
    assert len(seen) == 3 and len(scored) == 2
    assert all(np.array_equal(each, MASK) for each in [*seen, *scored])


def test_records_that_hold_no_model_get_none() -> None:
    infinite = InfiniteEntries({"w": np.float32([-INF, 1.0])})
    zero = {"w": np.zeros(2, np.float32)}
    sent = infinite.records({"arrays": zero, "model-1": zero, "control": zero})
    assert [sent[name]["w"][0] for name in sent] == [-INF, -INF, 0.0]


def test_arrays_of_one_network_are_known_by_their_own_names() -> None:
    infinite = InfiniteEntries({"1/mask": MASK, "dense/kernel": MASK[:1]})
    zero = {"mask": np.zeros((3, 3), np.float32), "kernel": np.zeros((1, 3), np.float32)}
    sent = infinite.put_back(zero)
    assert np.array_equal(sent["mask"], MASK)
    assert not sent["kernel"].any()


def test_a_run_goes_on_from_a_checkpoint_with_the_mask(tmp_path: Any) -> None:
    from fedsuite.callbacks.checkpoint_writer import CheckpointWriter
    from fedsuite.results.writer import RunFolder
    from fedsuite.rounds.checkpoint import load_latest

    folder = RunFolder.create(tmp_path / "run", {}, {})
    made = FedAvg(server_momentum=0.5)
    writer = CheckpointWriter(folder, "x", every=1, others=[])
    run_plain(made, plain_app(step), MODEL, num_rounds=2, callbacks=[writer])
    kept = load_latest(tmp_path / "run" / "checkpoints", "x")
    assert kept is not None
    again = run_plain(
        FedAvg(server_momentum=0.5), plain_app(step), MODEL, num_rounds=4, resume=kept
    )
    whole = run_plain(FedAvg(server_momentum=0.5), plain_app(step), MODEL, num_rounds=4)
    for name, array in final(whole).items():
        assert array.tobytes() == final(again)[name].tobytes()
