"""Which clients of a message answer together, and that they answer as by themselves."""

import pytest
from flwr.app import Context, RecordDict

from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, EVALUATE, TRAIN, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.running.worker import Worker
from fedsuite.training.store import MemoryStore

SMALL = {"model": "mlp", "hidden-width": 8, "batch-size": 10}
CONTEXT = Context(1, 1000, {}, RecordDict(), {})


def worker(**values):
    named = {key.replace("_", "-"): value for key, value in values.items()}
    return Worker(Experiment.from_values({**SMALL, **named}), MemoryStore())


def asked(kind, made, clients=(0, 1, 4)):
    arrays = model_arrays(made._resident(0).model)
    return [Request(kind, k, {ARRAYS: arrays}, {"server-round": 2}) for k in clients]


@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_replies_are_those_of_the_clients(kind):
    made = worker()
    requests = asked(kind, made)
    found = made.together(CONTEXT, requests)
    assert list(found) == [0, 1, 4]
    for request in requests:
        alone = made.participant(CONTEXT, request.client_id).answer(request)
        assert found[request.client_id].metrics == alone.metrics
        assert found[request.client_id].arrays.keys() == alone.arrays.keys()
        for name, array in alone.arrays.get(ARRAYS, {}).items():
            assert (
                found[request.client_id].arrays[ARRAYS][name].tobytes() == array.tobytes()
            )


@pytest.mark.parametrize(
    "values",
    [
        {"method": "fedprox"},
        {"model": "resnet18", "hidden-width": None},
        {"attack": "sign-flip", "attackers": 0.2},
        {"drop-out": 0.1},
        {"upload-noise-multiplier": 0.5, "upload-clip": 1.0},
        {"score-trained": True},
        {"score-training-data": True},
        {"lsr-gamma": 1.0},
        {"momentum": 0.9},
    ],
)
def test_clients_that_do_more_than_plain_training_are_asked_one_by_one(values):
    named = {key: value for key, value in {**SMALL, **values}.items() if value is not None}
    made = Worker(Experiment.from_values(named), MemoryStore())
    assert not made.together(CONTEXT, asked(TRAIN, made))


def test_requests_that_are_not_alike_are_answered_one_by_one():
    made = worker()
    one, two, three = asked(TRAIN, made)
    other = Request(TRAIN, 4, {ARRAYS: dict(three.arrays[ARRAYS])}, three.config)
    some = {"1.bias": three.arrays[ARRAYS]["1.bias"]}
    part = [Request(TRAIN, k, {ARRAYS: some}) for k in (0, 1)]
    none = [Request("query.probe", k, {}) for k in (0, 1)]
    for requests in ([one], [one, two, other], part, none):
        assert not made.together(CONTEXT, requests)
    # Their data was read all the same, but for one that is alone.
    assert {0, 1, 4} <= set(made._data._clients._values)
