"""Content of messages as JSON and shared memory, there and back."""

import json
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.engines.pool.packing import (
    hear_arrays,
    hear_content,
    tell_arrays,
    tell_content,
    tell_record,
)
from fedsuite.messages.array_records import to_arrays, to_record

SCALARS = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.text()
    | st.binary()
)
SETTINGS = st.dictionaries(st.text(), SCALARS, max_size=5)


class Shelf:
    """Arrays on a shelf in place of shared memory."""

    def __init__(self):
        self.arrays = []

    def put(self, array):
        self.arrays.append(array)
        return len(self.arrays) - 1

    def get(self, place):
        return self.arrays[place]


def sent(content, known=lambda record: None):
    shelf = Shelf()
    told = json.loads(json.dumps(tell_content(content, shelf.put, known)))
    return hear_content(told, shelf.get), shelf


@given(settings=SETTINGS)
def test_settings_arrive_with_their_types(settings):
    found, _ = sent(RecordDict({"config": ConfigRecord(settings)}))
    held = dict(found["config"])
    assert held == settings
    assert [type(v) for v in held.values()] == [type(v) for v in settings.values()]


@pytest.mark.parametrize(
    "values", [[1, 2], [1.0, math.inf], [True, False], ["a", ""], [b"\x00\xff", b""], []]
)
def test_lists_arrive(values):
    found, _ = sent(RecordDict({"config": ConfigRecord({"list": values})}))
    assert found["config"]["list"] == values


def test_metrics_arrive_as_metrics_and_nan_as_nan():
    metrics = {
        "loss": math.nan,
        "num-examples": 3,
        "share": 0.1,
        "losses": [1.0, -math.inf],
    }
    found, _ = sent(RecordDict({"metrics": MetricRecord(metrics)}))
    held = dict(found["metrics"])
    assert math.isnan(held.pop("loss"))
    assert held == {"num-examples": 3, "share": 0.1, "losses": [1.0, -math.inf]}
    assert type(found["metrics"]) is MetricRecord


def test_arrays_keep_names_order_and_bits():
    arrays = {
        "b": np.array([[1.0, math.nan]], np.float32),
        "a": np.array(3),
        "0": np.zeros(0),
    }
    record = to_record(arrays)
    record["flower"] = Array(np.array([2.5]))
    found, shelf = sent(RecordDict({"arrays": record}))
    held = to_arrays(found["arrays"])
    assert list(held) == ["b", "a", "0", "flower"]
    for name, array in {**arrays, "flower": np.array([2.5])}.items():
        assert held[name].tobytes() == array.tobytes() and held[name].shape == array.shape
    # Where they lie: nothing was copied on the way in.
    assert np.shares_memory(held["b"], shelf.arrays[0])


def test_a_record_that_is_known_is_not_put_away_again():
    record = to_record({"w": np.ones(2)})
    shelf = Shelf()
    told = tell_record(record, shelf.put)
    content = RecordDict({"arrays": record, "own": to_record({"x": np.zeros(1)})})
    held = tell_content(content, shelf.put, lambda r: told if r is record else None)
    assert len(shelf.arrays) == 2
    assert held["arrays"] is told
    assert hear_content(held, shelf.get)["own"]["x"].numpy().tolist() == [0.0]


def test_an_empty_record_of_arrays_arrives():
    found, _ = sent(RecordDict({"arrays": ArrayRecord()}))
    assert type(found["arrays"]) is ArrayRecord and not found["arrays"]


def test_named_arrays_of_a_state():
    shelf = Shelf()
    told = json.loads(
        json.dumps(tell_arrays({"z": np.ones(1), "a": np.zeros(2)}, shelf.put))
    )
    found = hear_arrays(told, shelf.get)
    assert {name: array.tolist() for name, array in found.items()} == {
        "z": [1],
        "a": [0, 0],
    }
    assert list(found) == ["z", "a"]
