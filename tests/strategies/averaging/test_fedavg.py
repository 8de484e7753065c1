"""FedAvg, against numbers done by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_record
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.aggregation import WeightedMean, mean_metrics, weighted_mean
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions
from tests.helpers import MEAN_OF_ALL, TamperingGrid, matrix_app, run, strategy_for


def half_steps(count: int) -> TrainingOptions:
    return TrainingOptions(local_steps=count, batch_size=0, learning_rate=0.5)


def test_golden_rounds() -> None:
    """Each half step goes half of the way to 2.25: 1.125, then 1.6875."""
    grid = TamperingGrid(matrix_app(training=half_steps(1)), 3)
    trace = run(strategy_for("single"), grid, 2)
    assert trace.weights == [1.125, 1.6875]


def test_golden_metrics() -> None:
    """Losses at W = 0 are 2 x^2: 2, 8, 32; the mean by examples is 50 / 4."""
    report = run(strategy_for("hosted"), TamperingGrid(matrix_app(), 3)).reports[0]
    assert [row["loss"] for row in report.train.rows] == [2.0, 8.0, 32.0]
    assert report.metrics["train_loss"] == 12.5
    assert report.metrics["train_num_examples"] == 4
    assert report.metrics["train_num_steps"] == 1.0
    # Logits are equal, so each sample's loss is log 2, and label 0 wins the tie.
    assert report.metrics["evaluate_loss"] == pytest.approx(np.log(2))
    assert report.metrics["accuracy_mean"] == 1.0


def test_one_client_gives_its_own_model() -> None:
    app = matrix_app(values=[3.0], counts=[5], training=half_steps(2))
    trace = run(FedAvg(min_available_nodes=1), TamperingGrid(app, 1))
    assert trace.weights == [2.25]


def test_equal_weights_give_the_plain_mean() -> None:
    app = matrix_app(counts=[7, 7, 7])
    trace = run(strategy_for("single"), TamperingGrid(app, 3))
    assert trace.weights == [np.float32(7 / 3)]


def test_other_weight_key() -> None:
    strategy = strategy_for("single", weighted_by_key="num-steps", fraction_evaluate=0.0)
    trace = run(strategy, TamperingGrid(matrix_app(), 3))
    assert trace.weights == [np.float32(7 / 3)]
    assert "num-steps" not in trace.result.train_metrics_clientapp[1]


def test_server_evaluation_sees_each_model() -> None:
    from flwr.app import MetricRecord

    from fedsuite.workarounds.identity import flower_identity
    from tests.helpers import zeros

    def evaluate(server_round: int, arrays):
        weight = float(arrays["weight"].numpy()[0, 0])
        return MetricRecord({"weight": weight}) if server_round != 2 else None

    grid = TamperingGrid(matrix_app(training=half_steps(1)), 3)
    with flower_identity():
        result = strategy_for("single").start(grid, zeros(), 2, evaluate_fn=evaluate)
    values = {k: v["weight"] for k, v in result.evaluate_metrics_serverapp.items()}
    assert values == {0: 0.0, 1: 1.125}


def test_metrics_cannot_take_the_columns_that_the_server_fills() -> None:
    """What a client says of itself is never believed."""
    from tests.helpers import for_client, run_tampered, set_metrics

    claims = dict.fromkeys(("client", "num_examples", "round", "phase"), 99)

    def tamper(replies):
        for name, value in claims.items():
            replies[1].content["metrics"][name] = value
        return replies

    trace = run_tampered("single", tamper)
    row = trace.reports[0].train.rows[1]
    assert row["client"] == 1001
    assert row["num_examples"] == 2
    assert not {"round", "phase"} & set(row)
    extra = run_tampered("single", for_client(1, "single", set_metrics(my_metric=3)))
    assert extra.reports[0].train.rows[1]["my_metric"] == 3


# Batch normalisation


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.out = nn.Linear(2, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(features))


def test_integer_buffers_keep_their_dtype_and_are_rounded() -> None:
    """Counters after 1, 2 and 4 steps, weights 1, 1, 2: the mean 2.75 becomes 3."""
    steps, sizes = (1, 2, 4), (8, 8, 16)

    def client_fn(context, client_id: int) -> FedAvgClient:
        data = Split(
            torch.arange(2.0 * sizes[client_id]).reshape(-1, 2),
            torch.zeros(sizes[client_id], dtype=torch.int64),
        )
        training = TrainingOptions(local_steps=steps[client_id], batch_size=8)
        return FedAvgClient(Normalised(), data, data, training=training)

    initial = model_arrays(Normalised())
    grid = LocalGrid(make_client_app(client_fn, ["train", "evaluate"]), 3)
    trace = run(FedAvg(), grid, 1, to_record(initial))
    assert not trace.reports[0].train.rejections
    final = trace.arrays[-1]
    counter = final["norm.num_batches_tracked"]
    assert counter.dtype == np.int64
    assert counter.shape == ()
    assert counter == 3
    assert list(final) == list(initial)
    assert {n: a.dtype for n, a in final.items()} == {
        n: a.dtype for n, a in initial.items()
    }


# The mean itself


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 10**6)), min_size=1, max_size=8)
)
def test_mean_lies_between_and_matches_numpy(rows: list[tuple[float, int]]) -> None:
    values, weights = [row[0] for row in rows], [row[1] for row in rows]
    found = weighted_mean([{"a": np.array([value])} for value in values], weights)
    if sum(weights) == 0:
        assert found is None
        return
    assert found is not None
    used = [value for value, weight in rows if weight]
    slack = 1e-9 * max(1.0, *map(abs, used))
    assert min(used) - slack <= found["a"][0] <= max(used) + slack
    assert found["a"][0] == pytest.approx(np.average(values, weights=weights), abs=1e-6)


def test_mean_of_float32_is_taken_in_float64() -> None:
    """2^24 + 1 is no float32: adding ones to 2^24 in float32 would lose each of them."""
    mean = WeightedMean()
    large = np.array([2.0**24], dtype=np.float32)
    for array in (large, *[np.ones(1, dtype=np.float32)] * 4):
        mean.add({"a": array}, 1.0)
    result = mean.result()
    assert result is not None
    assert result["a"].dtype == np.float32
    assert result["a"][0] == np.float32((2**24 + 4) / 5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 65_536), (65_537,), (400, 500)])
def test_arrays_of_any_size_are_summed_alike(shape: tuple[int, ...], dtype: str) -> None:
    """Large ones go block by block: the bits are those of one formula for all entries."""
    generator = np.random.default_rng(0)
    weights = [1.0, 3.0, 0.5]
    rows = [np.asarray(generator.normal(0, 9, shape)).astype(dtype) for _ in weights]
    # Not in C order either: what NumPy hands over as a transpose.
    rows[1] = np.asfortranarray(rows[1])
    mean = weighted_mean([{"a": row} for row in rows], weights)
    total = sum(row.astype(np.float64) * w for row, w in zip(rows, weights, strict=True))
    exact = total / 4.5
    expected = (np.rint(exact) if dtype == "int64" else exact).astype(dtype)
    assert mean is not None
    assert (mean["a"].shape, mean["a"].dtype) == (shape, np.dtype(dtype))
    assert mean["a"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_mean_refuses_bad_weights(weight: float) -> None:
    with pytest.raises(ValueError, match="is not a finite number >= 0"):
        WeightedMean().add({"a": np.zeros(1)}, weight)


def test_mean_does_not_write_into_what_it_is_given() -> None:
    arrays = [{"a": np.full(2, value)} for value in (1.0, 2.0)]
    for named in arrays:
        named["a"].flags.writeable = False
    assert weighted_mean(arrays, [1, 3])["a"].tolist() == [1.75, 1.75]  # type: ignore[index]


def test_mean_of_metrics() -> None:
    rows = [{"n": 1.0, "a": 2.0, "b": 1.0}, {"n": 3.0, "a": 6.0}]
    assert mean_metrics(rows, "n") == {"a": 5.0, "n": 4.0}
    assert mean_metrics([{"n": 0.0, "a": 2.0}, {"n": 0.0, "a": 4.0}], "n") == {
        "a": 3.0,
        "n": 0.0,
    }
    assert mean_metrics([], "n") == {}


def test_final_model_is_the_average_of_all() -> None:
    trace = run(strategy_for("shared-node"), TamperingGrid(matrix_app(), 2), 3)
    assert trace.weights == [MEAN_OF_ALL] * 3
