"""Translation to and from the records of Flower's legacy NumPyClients."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsuite.messages.array_records import RecordError, to_arrays, to_record
from fedsuite.messages.legacy import from_legacy, to_legacy

MODEL = {"weight": np.ones((2, 2)), "bias": np.arange(2)}


def request(**config: object) -> RecordDict:
    return RecordDict(
        {"arrays": to_record(MODEL), "config": ConfigRecord(dict(config))}  # type: ignore[arg-type]
    )


def result(kind: str = "fitres", arrays: int = 2, code: int = 0) -> RecordDict:
    positions = ArrayRecord()
    for index, array in enumerate(list(MODEL.values())[:arrays]):
        positions[str(index)] = to_record({"x": array})["x"]
    return RecordDict(
        {
            f"{kind}.parameters": positions,
            f"{kind}.num_examples": MetricRecord({"num_examples": 8}),
            f"{kind}.loss": MetricRecord({"loss": 0.5}),
            f"{kind}.metrics": ConfigRecord({"accuracy": 0.25, "flag": True, "tag": "x"}),
            f"{kind}.status": ConfigRecord({"code": code, "message": "out of\nmemory"}),
        }
    )


@pytest.mark.parametrize(
    ("message_type", "prefix"), [("train", "fitins"), ("evaluate", "evaluateins")]
)
def test_request(message_type: str, prefix: str) -> None:
    config = {"server-round": 3, "mu": 0.5, "name": "x", "ids": [1, 2]}
    legacy = to_legacy(request(**config), message_type)
    assert set(legacy) == {f"{prefix}.parameters", f"{prefix}.config"}
    assert dict(legacy[f"{prefix}.config"]) == {"server-round": 3, "mu": 0.5, "name": "x"}
    arrays = to_arrays(legacy[f"{prefix}.parameters"])
    assert list(arrays) == ["0", "1"]
    assert arrays["0"].shape == (2, 2)


def test_kinds_that_a_legacy_app_does_not_know() -> None:
    with pytest.raises(RecordError, match=r"cannot answer 'query\.probe': use a method"):
        to_legacy(request(), "query.probe")


def test_a_legacy_app_takes_one_list_of_arrays() -> None:
    nothing = RecordDict({"config": ConfigRecord()})
    two = request()
    two["control"] = to_record(MODEL)
    for content, named in ((nothing, r"\[\]"), (two, r"\['arrays', 'control'\]")):
        with pytest.raises(RecordError, match=f"this method sends {named}"):
            to_legacy(content, "train")


def test_training_result_gets_its_names_back() -> None:
    reply = from_legacy(result(), "train", list(MODEL))
    arrays = to_arrays(reply["arrays"])
    assert list(arrays) == ["weight", "bias"]
    assert arrays["weight"].tolist() == MODEL["weight"].tolist()
    assert arrays["bias"].tolist() == [0, 1]
    assert dict(reply["metrics"]) == {"accuracy": 0.25, "num-examples": 8}
    # What is no number is where any client's text is: an app's own mean may read it.
    assert dict(reply["followed"]) == {"flag": True, "tag": "x"}


def test_evaluation_result_has_its_loss_among_the_metrics() -> None:
    reply = from_legacy(result("evaluateres"), "evaluate", list(MODEL))
    assert set(reply) == {"metrics", "followed"}
    assert dict(reply["metrics"]) == {"accuracy": 0.25, "loss": 0.5, "num-examples": 8}


def test_a_loss_among_the_clients_own_metrics_goes_before() -> None:
    content = result("evaluateres")
    content["evaluateres.metrics"] = ConfigRecord({"loss": 0.75})
    reply = from_legacy(content, "evaluate", list(MODEL))
    assert dict(reply["metrics"]) == {"loss": 0.75, "num-examples": 8}


def test_results_that_cannot_be_used() -> None:
    with pytest.raises(RecordError, match="1 arrays came back, 2 were sent"):
        from_legacy(result(arrays=1), "train", list(MODEL))
    with pytest.raises(RecordError, match=r"client reported: 'out of\\nmemory'"):
        from_legacy(result(code=5), "train", list(MODEL))
    for name in ("parameters", "num_examples", "metrics", "status"):
        content = result()
        del content[f"fitres.{name}"]
        with pytest.raises(RecordError, match=rf"fitres\.{name}.* is missing"):
            from_legacy(content, "train", list(MODEL))
    with pytest.raises(RecordError, match="is missing"):
        from_legacy(result("evaluateres"), "train", list(MODEL))
