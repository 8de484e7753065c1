"""FedAKD's strategy: weights, what travels, whole runs, and resuming them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsuite.clients import load_client
from fedsuite.clients.distillation.fedakd import FedAKDClient
from fedsuite.core.errors import RunError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.data import FederatedData, Split
from fedsuite.data.federated import ClientData
from fedsuite.engines.api import resume, run
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import (
    ARRAYS,
    SELECTED,
    Arrays,
    Reply,
    Request,
)
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies import load_strategy
from fedsuite.strategies.distillation.fedakd import FedAKD
from fedsuite.training.store import MemoryStore
from tests.helpers import Trace, aggregated, bits, digits_experiment, final_bits, run_digits
from tests.small_runs import client_states, final_model

SIZES = (1000, 500, 250)
MODELS = (1.0, 2.0, 4.0)
COUNTERS = (3, 5, 8)


def model(value: float, counter: int) -> Arrays:
    return {
        "weight": np.full((2, 3), value, dtype=np.float32),
        "norm.running_var": np.full(3, value, dtype=np.float32),
        "norm.num_batches_tracked": np.array(counter),
    }


def average(
    selected: tuple[float, ...] = SIZES,
    order: tuple[int, ...] = (0, 1, 2),
    sizes: tuple[int, ...] = SIZES,
    **options: Any,
) -> tuple[Arrays | None, FedAKD]:
    strategy = FedAKD(**options)
    replies = (
        ClientReply(
            k,
            {ARRAYS: model(MODELS[k], COUNTERS[k])},
            {SELECTED: float(selected[k])},
            sizes[k],
        )
        for k in order
    )
    return aggregated(strategy, model(0.0, 0), replies), strategy


def values(arrays: Arrays | None) -> list[float]:
    """Return the number that fills each float array, and the counter."""
    assert arrays is not None
    found = [arrays["weight"], arrays["norm.running_var"]]
    assert all(np.all(array == array.flat[0]) for array in found)
    assert arrays["norm.num_batches_tracked"].dtype == np.int64
    return [float(array.flat[0]) for array in found]


def test_weights_are_sizes_whatever_was_selected() -> None:
    for selected in (SIZES, (0, 0, 0), (10, 400, 3)):
        arrays, strategy = average(selected)
        assert values(arrays) == pytest.approx([1.7142857] * 2)
        # (3000 + 2500 + 2000) / 1750 = 4.29
        assert arrays is not None and arrays["norm.num_batches_tracked"] == 4
        share = strategy.round_metrics["selected_share"]
        assert share == pytest.approx(sum(selected) / 1750)


def test_order_of_clients_is_of_no_consequence() -> None:
    assert values(average(order=(2, 0, 1))[0]) == pytest.approx(values(average()[0]))


def test_correct_agg_weighs_by_selected_samples() -> None:
    arrays, _ = average(
        (100, 500, 250), fedakd_ablation="correct-agg", max_share_ratio="off"
    )
    assert values(arrays) == pytest.approx([2.4705882] * 2)


def test_correct_agg_at_one_hit_rate_is_the_whole_method() -> None:
    arrays, _ = average((400, 200, 100), fedakd_ablation="correct-agg")
    assert values(arrays) == pytest.approx(values(average()[0]))


def test_nobody_selects_more_than_it_has() -> None:
    arrays, _ = average((1e15, 500, 250), fedakd_ablation="correct-agg")
    assert values(arrays) == pytest.approx([1.7142857] * 2)


def test_without_any_hit_correct_agg_keeps_the_model() -> None:
    assert average((0, 0, 0), fedakd_ablation="correct-agg")[0] is None
    assert average((0, 0, 0), sizes=(0, 0, 0))[0] is None


def exchange(**options: Any) -> Exchange:
    return FedAKD(**options).train_exchange(model(0.0, 0), [0, 1])


def test_message_says_how_to_distil() -> None:
    found = exchange(
        global_to_local_weight=0.5,
        local_to_global_weight=2.0,
        distillation_temperature=3.0,
        confidence_threshold=0.25,
        fedakd_order="code",
        fedakd_ablation="single-dist",
    )
    assert found.config == {
        "global-to-local-weight": 0.5,
        "local-to-global-weight": 2.0,
        "distillation-temperature": 3.0,
        "confidence-threshold": 0.25,
        "fedakd-order": "code",
        "fedakd-ablation": "single-dist",
    }
    assert set(found.shared) == set(found.expected.arrays) == {ARRAYS}
    assert found.expected.bounds[SELECTED][0] == 0.0


def test_defaults_are_the_papers_where_it_has_some() -> None:
    experiment = Experiment.from_values({"method": "fedakd"})
    expected: dict[str, Value] = {
        "global-to-local-weight": 1.0,
        "local-to-global-weight": 1.0,
        "distillation-temperature": 1.0,
        "confidence-threshold": 0.0,
        "fedakd-order": "paper",
        "fedakd-ablation": "none",
        "optimizer": "adam",
        "learning-rate": 0.001,
        "batch-size": 32,
        "local-epochs": 1,
    }
    assert {key: experiment[key] for key in expected} == expected


AKD = {
    "method": "fedakd",
    "model": "cnn-fedakd",
    "num_rounds": 2,
    "optimizer": "adam",
    "learning_rate": 0.01,
}


def play(**changes: Value) -> tuple[Trace, MemoryStore, list[Message]]:
    """Return a run on digits, what the clients keep, and all that they sent."""
    store, sent = MemoryStore(), []

    def listen(replies: list[Message]) -> list[Message]:
        sent.extend(replies)
        return replies

    trace = run_digits(digits_experiment(**{**AKD, **changes}), store, listen)
    return trace, store, sent


def test_run_records_who_selected_what_and_sends_one_model_each() -> None:
    trace, store, sent = play()
    size = sum(array.nbytes for array in trace.arrays[0].values())
    for report in trace.reports:
        assert report.train is not None and report.evaluate is not None
        rows = report.train.rows
        assert len(rows) == 4
        for row in rows:
            assert 0 < row["selected"] <= row["num_examples"]
            assert row["loss"] > 0 and row["local_loss"] > 0 and row["distilled_loss"] > 0
        share = sum(float(row["selected"]) for row in rows) / sum(
            float(row["num_examples"]) for row in rows
        )
        assert report.metrics["selected_share"] == pytest.approx(share)
        assert report.metrics["train_selected"] > 0
        assert (report.train.bytes_up, report.train.bytes_down) == (4 * size, 4 * size)
        for row in report.evaluate.rows:
            assert {"accuracy", "global_accuracy", "global_loss"} <= set(row)
    # 16 arrays: two convolutions, two norms of five, one linear layer.
    assert len(trace.arrays[0]) == 16
    kept = {bits(store.load(k, "2.1"))[name] for k in range(4) for name in ("0.weight",)}
    assert len(kept) == 4
    for message in sent:
        for name, record in message.content.array_records.items():
            assert name.endswith(ARRAYS)
            assert to_arrays(record)["0.weight"].tobytes() not in kept


def test_local_models_are_standalones_where_the_teacher_has_no_weight() -> None:
    _, alone, _ = play(method="standalone", optimizer="adam")
    _, store, _ = play(global_to_local_weight=0.0)
    _, taught, _ = play()
    for client_id in range(4):
        theirs = bits(alone.load(client_id, "2.1"))
        assert bits(store.load(client_id, "2.1")) == theirs
        assert bits(taught.load(client_id, "2.1")) != theirs


def test_every_option_reaches_the_clients() -> None:
    runs = {
        name: tuple(final_bits(**{**AKD, "model": "linear", **changes}).items())
        for name, changes in {
            "usual": {},
            "alpha": {"global_to_local_weight": 0.5},
            "beta": {"local_to_global_weight": 0.5},
            "temperature": {"distillation_temperature": 3.0},
            "threshold": {"confidence_threshold": 0.5},
            "order": {"fedakd_order": "code"},
            "all-data": {"fedakd_ablation": "all-data"},
            "single-dist": {"fedakd_ablation": "single-dist"},
            "correct-agg": {"fedakd_ablation": "correct-agg"},
            "optimizer": {"optimizer": "sgd"},
        }.items()
    }
    assert len(set(runs.values())) == len(runs)


class Alarm(Split):
    """Test rows that may be looked at while nobody trains."""

    armed = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("features", "labels") and Alarm.armed:
            raise RuntimeError("a test sample was touched in training")
        return super().__getattribute__(name)


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, train = FederatedData.client, FedAKDClient.on_train

    def guarded(self: FederatedData, client_id: int) -> ClientData:
        data = whole(self, client_id)
        return ClientData(data.train, Alarm(data.test.features, data.test.labels))

    def watched(self: FedAKDClient, request: Request) -> Reply:
        monkeypatch.setattr(Alarm, "armed", True)
        try:
            return train(self, request)
        finally:
            monkeypatch.setattr(Alarm, "armed", False)

    monkeypatch.setattr(FederatedData, "client", guarded)
    monkeypatch.setattr(FedAKDClient, "on_train", watched)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("changes", [{}, {"fedakd_order": "code"}])
def test_no_run_touches_a_test_sample_in_training(changes: dict[str, Value]) -> None:
    trace, _, _ = play(model="linear", **changes)
    assert [report.metrics["replies_rejected"] for report in trace.reports] == [0, 0]


@pytest.mark.usefixtures("alarm")
def test_the_alarm_goes_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that trains on its test rows too, as the authors' scripts do."""
    train = FedAKDClient.train_locally

    def leaky(self: FedAKDClient, *args: Any, **options: Any) -> Any:
        self.train_data = self.test_data
        return train(self, *args, **options)

    monkeypatch.setattr(FedAKDClient, "train_locally", leaky)
    with pytest.raises(RunError, match=r"failed alike.*a test sample was touched"):
        play(model="linear")


def test_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    values: dict[str, Value] = {
        "method": "fedakd",
        "model": "cnn-fedakd",
        "num-clients": 3,
        "partitioner": "power-law",
        "local-steps": 3,
        "batch-size": 16,
        "device": "cpu",
        "report": False,
        "output-dir": str(tmp_path),
    }
    whole = run({**values, "num-rounds": 4, "run-name": "whole"})
    run({**values, "num-rounds": 2, "run-name": "parts"})
    parts = resume(tmp_path / "parts", num_rounds=4)
    assert final_model(whole.path) == final_model(parts.path)
    assert client_states(whole.path) == client_states(parts.path)
    assert len(client_states(whole.path)) == 3
    for key in ("accuracy_mean", "evaluate_global_loss", "selected_share"):
        assert whole.column(key)[1].tolist() == parts.column(key)[1].tolist()
        assert len(parts.column(key)[0]) == 4


def test_it_is_listed() -> None:
    assert load_strategy(METHODS["fedakd"]) is FedAKD
    assert load_client(METHODS["fedakd"]) is FedAKDClient


def test_a_legacy_client_is_refused() -> None:
    with pytest.raises(ValueError, match="wire = 'numpy': a legacy NumPyClient app stores"):
        FedAKD(wire="numpy")
