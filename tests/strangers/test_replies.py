"""Replies of strangers' clients: what Flower's FedAvg makes of them, and what ours does.

Where Flower's goes on, ours does, to the same model, but for what would spoil it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as Stock
from flwr.serverapp.strategy import Result, Strategy

from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.workarounds.identity import flower_identity
from tests.strangers.apps import ListGrid

NAN = float("nan")
Model = dict[str, Any]


def model(dtype: str = "float32") -> Model:
    return {"weight": np.zeros((2, 3), dtype), "bias": np.ones((), dtype)}


def step(arrays: Model, client: int) -> Model:
    return {name: array + array.dtype.type(client) for name, array in arrays.items()}


@dataclass(frozen=True)
class Case:
    """How a client answers; ``ours`` is what our FedAvg says if it does not go on."""

    start: Model = field(default_factory=model)
    train: Callable[[Model, int], Model] = step
    metrics: Callable[[int], Mapping[str, Any]] = lambda client: {}
    more: Callable[[int], RecordDict] = lambda client: RecordDict()
    fails: Callable[[int, int], bool] = lambda client, server_round: False
    name: str = "arrays"
    flowers: str = ""
    ours: str = ""


def cast(dtype: str) -> Callable[[Model, int], Model]:
    return lambda arrays, client: {
        name: array.astype(dtype) for name, array in step(arrays, client).items()
    }


SAME = {
    "plain": Case(),
    "metrics that are lists": Case(metrics=lambda k: {"by-class": [1.0 * k, 2.0]}),
    "names of metrics with dashes": Case(metrics=lambda k: {"train-acc": 0.5}),
    "metrics that are called as columns of our reports": Case(
        metrics=lambda k: {"round": 3, "client": k, "phase": 0.5}
    ),
    "a ConfigRecord": Case(more=lambda k: RecordDict({"notes": ConfigRecord({"a": "b"})})),
    "another name of the model's record": Case(name="model"),
    "arrays in another order": Case(
        train=lambda arrays, k: dict(reversed(step(arrays, k).items()))
    ),
    "Fortran order": Case(
        train=lambda arrays, k: {
            n: np.asarray(a, order="F") for n, a in step(arrays, k).items()
        }
    ),
    "float64": Case(start=model("float64")),
    "float16": Case(start=model("float16")),
    "float64 for float32": Case(train=cast("float64")),
    "float32 for float64": Case(start=model("float64"), train=cast("float32")),
    "float16 for float32": Case(train=cast("float16")),
    "an empty array": Case(start={**model(), "empty": np.zeros((0, 3), np.float32)}),
    "examples that are no whole number": Case(metrics=lambda k: {"num-examples": k + 0.5}),
    "one client fails in round 2": Case(fails=lambda k, r: (k, r) == (1, 2)),
    "all clients fail in round 2": Case(fails=lambda k, r: r == 2),
}
"""To the same model, and the same metrics."""

ROUNDED = {
    "integers": Case(start=model("int64")),
    "booleans": Case(
        start={"mask": np.array([True, False])}, train=lambda arrays, k: arrays
    ),
}
"""Ours keeps the model's dtype, where Flower's makes float64 of it."""

BETTER = {
    "a second MetricRecord": Case(
        more=lambda k: RecordDict({"more": MetricRecord({"speed": 1.0})}),
        flowers="exactly one MetricRecord",
    ),
    "a metric that one client alone has": Case(
        metrics=lambda k: {"odd": 1.0} if k == 0 else {}, flowers="must have the same keys"
    ),
    "lists of different lengths": Case(
        metrics=lambda k: {"by-class": [1.0] * (k + 1)}, flowers="zip"
    ),
    "no examples": Case(metrics=lambda k: {"num-examples": 0}, flowers="division by zero"),
}
"""Flower's ends the run, ours goes on."""

REFUSED = {
    "integers for floats": Case(
        train=cast("int64"), ours="array .*: dtype int64, expected float32"
    ),
    "floats for integers": Case(
        start=model("int64"), train=cast("float64"), ours="dtype float64, expected int64"
    ),
    "a model that the server does not know": Case(
        start={}, train=lambda arrays, k: model(), ours="array names differ: 0 missing"
    ),
    "a model without its frozen layers": Case(
        train=lambda arrays, k: {"weight": arrays["weight"]},
        ours="'bias'.*: clients have to send back the arrays that they are sent, so start",
    ),
    "complex numbers": Case(
        start=model("complex64"), ours="dtype complex64 is not allowed"
    ),
    "a second ArrayRecord": Case(
        more=lambda k: RecordDict({"more": record_of(model())}),
        flowers="exactly one ArrayRecord",
        ours="unexpected array record: more",
    ),
    "no weight": Case(
        metrics=lambda k: {"num-examples": None},
        flowers="Missing required key `num-examples`",
        ours="metric 'num-examples' is missing",
    ),
    "all clients fail in all rounds": Case(
        fails=lambda k, r: True, ours="OSError: no disk"
    ),
}
"""Ours ends the run with one line, in most where Flower's goes on."""


def app_of(case: Case) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        client = int(context.node_config["partition-id"])
        if case.fails(client, int(message.content["config"]["server-round"])):
            raise OSError("no disk")
        received = {k: array.numpy() for k, array in message.content["arrays"].items()}
        trained = case.train(received, client)
        metrics = {"train_loss": 0.5, "num-examples": client + 1, **case.metrics(client)}
        content = RecordDict(
            {
                case.name: record_of(trained),
                "metrics": MetricRecord(
                    {k: v for k, v in metrics.items() if v is not None}
                ),
                **case.more(client),
            }
        )
        return Message(content, reply_to=message)

    return app


def record_of(arrays: Model) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def start(strategy: Strategy, case: Case) -> Result:
    with flower_identity():
        return strategy.start(
            ListGrid(app_of(case), 3), record_of(case.start), num_rounds=3
        )


def both(case: Case) -> tuple[Result, Result]:
    return (
        start(Stock(fraction_evaluate=0.0), case),
        start(FedAvg(fraction_evaluate=0.0), case),
    )


@pytest.mark.parametrize("name", SAME)
def test_ours_does_as_flowers(name: str) -> None:
    theirs, ours = both(SAME[name])
    assert set(ours.arrays) == set(theirs.arrays)
    for key, array in theirs.arrays.items():
        assert ours.arrays[key].numpy() == pytest.approx(array.numpy(), rel=2e-3)
        assert ours.arrays[key].numpy().dtype == SAME[name].start[key].dtype
    assert list(ours.train_metrics_clientapp) == list(theirs.train_metrics_clientapp)
    for number, metrics in theirs.train_metrics_clientapp.items():
        found = dict(ours.train_metrics_clientapp[number])
        assert found.keys() == metrics.keys()
        for key, value in metrics.items():
            assert found[key] == pytest.approx(value)


def test_arrays_without_names_are_those_that_were_sent_in_their_order() -> None:
    """Flower's model has other names after the first round, 0 and 1."""
    numbered = Case(
        train=lambda arrays, k: dict(zip("01", step(arrays, k).values(), strict=True))
    )
    ours, named = (
        start(FedAvg(fraction_evaluate=0.0), case) for case in (numbered, Case())
    )
    assert list(ours.arrays) == list(named.arrays) == list(model())
    for name, array in named.arrays.items():
        assert np.array_equal(ours.arrays[name].numpy(), array.numpy())


@pytest.mark.parametrize("name", ROUNDED)
def test_ours_keeps_the_dtype(name: str) -> None:
    theirs, ours = both(ROUNDED[name])
    for key, array in theirs.arrays.items():
        assert array.numpy().dtype == np.float64
        kept = ours.arrays[key].numpy()
        assert kept.dtype == ROUNDED[name].start[key].dtype
        assert kept.astype(float) == pytest.approx(array.numpy(), abs=3.0)


def test_a_metric_that_is_not_finite_is_left_out_and_the_model_counts() -> None:
    theirs, ours = both(Case(metrics=lambda k: {"extra": NAN}))
    weights = [result.arrays["weight"].numpy() for result in (theirs, ours)]
    # Flower's adds in the order of its draw, which no seed fixes: the last bit may differ.
    np.testing.assert_allclose(*weights, rtol=1e-6)
    assert "extra" in theirs.train_metrics_clientapp[1]
    assert "extra" not in ours.train_metrics_clientapp[1]


@pytest.mark.parametrize("name", BETTER)
def test_ours_goes_on_where_flowers_ends(name: str) -> None:
    case = BETTER[name]
    with pytest.raises(Exception, match=case.flowers):
        start(Stock(fraction_evaluate=0.0), case)
    found = start(FedAvg(fraction_evaluate=0.0), case).arrays["weight"].numpy()
    grown = 3 * sum(k * (k + 1) for k in range(3)) / sum(k + 1 for k in range(3))
    assert np.allclose(found, 0.0 if name == "no examples" else grown)


@pytest.mark.parametrize("name", REFUSED)
def test_ours_ends_in_one_line(name: str) -> None:
    case = REFUSED[name]
    if case.flowers:
        with pytest.raises(Exception, match=case.flowers):
            start(Stock(fraction_evaluate=0.0), case)
    else:
        start(Stock(fraction_evaluate=0.0), case)
    with pytest.raises(Exception, match=case.ours) as caught:
        start(FedAvg(fraction_evaluate=0.0), case)
    assert "\n" not in str(caught.value)
