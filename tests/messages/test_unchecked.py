"""Records that are filled at once are those that Flower fills entry by entry."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsuite.messages.array_records import filled, metric_record


def test_filled_records_equal_flowers_own() -> None:
    array = Array(np.arange(3.0))
    arrays, config = ArrayRecord({"w": array}), ConfigRecord({"a": "b"})
    assert filled(ArrayRecord(), {"w": array}) == arrays
    assert filled(ConfigRecord(), {"a": "b"}) == config
    content = filled(RecordDict(), {"arrays": arrays, "config": config})
    assert content == RecordDict({"arrays": arrays, "config": config})
    # What the wire sees.
    assert content.object_id == RecordDict({"arrays": arrays, "config": config}).object_id


def test_what_a_record_holds_stays() -> None:
    record = filled(ConfigRecord({"a": 1, "b": 2}), {"b": 3})
    assert dict(record) == {"a": 1, "b": 3}


def test_a_record_that_keeps_its_entries_elsewhere_is_filled_too() -> None:
    class Elsewhere(dict):  # type: ignore[type-arg]
        pass

    assert filled(Elsewhere(), {"a": 1}) == {"a": 1}  # type: ignore[type-var]


@pytest.mark.parametrize("metrics", [{}, {"loss": 0.5, "n": 3}, {"many": [1.0, 2.0]}])
def test_metrics_are_flowers(metrics: dict[str, float]) -> None:
    assert metric_record(metrics) == MetricRecord(dict(metrics))


@pytest.mark.parametrize("value", [True, "0.5", None, np.float32(0.5)])
def test_what_is_no_metric_is_refused_as_by_flower(value: object) -> None:
    with pytest.raises(TypeError):
        MetricRecord({"loss": value})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        metric_record({"loss": value})
