"""Our strategies over strangers' apps, unchanged, and our clients under Flower's own."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import strategy as flower

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.errors import RunError
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import RecordError, to_arrays
from fedsuite.messages.records import records_of
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.personal.ditto import Ditto
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.packed import pack, unpack
from tests.helpers import (
    FULL_STEP,
    MEAN_OF_ALL,
    Matrix,
    MatrixClient,
    MatrixProxClient,
    TamperingGrid,
    Trace,
    bits,
    digits_experiment,
    for_client,
    matrix_app,
    run,
    run_digits,
    samples,
    set_arrays,
    zeros,
)
from tests.strangers import legacy_app, message_app

NAMES = ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]


def stranger_model() -> ArrayRecord:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ArrayRecord(message_app.Net().state_dict())


def run_stranger(app: Any, num_rounds: int = 3, **options: Any) -> Trace:
    return run(FedAvg(**options), LocalGrid(app, 3), num_rounds, stranger_model())


def test_message_app_under_our_fedavg() -> None:
    trace = run_stranger(message_app.app)
    assert not any(phase.rejections for r in trace.reports for phase in r.phases)
    first = trace.reports[0]
    assert [row["num_examples"] for row in first.train.rows] == [20, 30, 40]
    accuracies = [report.metrics["evaluate_eval_acc"] for report in trace.reports]
    assert accuracies[-1] > 0.85
    assert list(trace.arrays[-1]) == NAMES


def test_our_mean_of_a_strangers_replies_is_flowers() -> None:
    ours = run_stranger(message_app.app).arrays[-1]
    with flower_identity():
        stock = flower.FedAvg(min_available_nodes=3).start(
            LocalGrid(message_app.app, 3), stranger_model(), 3
        )
    for name, array in to_arrays(stock.arrays).items():
        assert ours[name] == pytest.approx(array, abs=1e-6)


def test_legacy_app_under_our_fedavg() -> None:
    """The same model and data as the message app's, so the same rounds."""
    trace = run_stranger(legacy_app.app, wire="numpy")
    assert not any(phase.rejections for r in trace.reports for phase in r.phases)
    other = run_stranger(message_app.app)
    for name, array in other.arrays[-1].items():
        assert trace.arrays[-1][name].tobytes() == array.tobytes()
    for mine, theirs in zip(trace.reports, other.reports, strict=True):
        assert [row["num_examples"] for row in mine.train.rows] == [20, 30, 40]
        assert [row["loss"] for row in mine.evaluate.rows] == [
            row["eval_loss"] for row in theirs.evaluate.rows
        ]
        assert mine.metrics["evaluate_eval_acc"] == theirs.metrics["evaluate_eval_acc"]


# Memory orders


def columns(record: ArrayRecord) -> ArrayRecord:
    """Return a record as scikit-learn's users send it: in Fortran order."""
    arrays = to_arrays(record)
    return ArrayRecord({k: Array(np.asfortranarray(a)) for k, a in arrays.items()})


class ColumnsGrid(LocalGrid):
    """Turns all arrays in replies into Fortran order."""

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        for reply in super().send_and_receive(messages, timeout=timeout):
            for name, record in records_of(reply.content, ArrayRecord).items():
                reply.content[name] = columns(record)
            yield reply


class OrderSeen(legacy_app.FlowerClient):
    """Refuses what does not come in C order."""

    def fit(self, parameters, config):
        assert all(array.flags.c_contiguous for array in parameters)
        return super().fit(parameters, config)


@pytest.mark.parametrize("wire", ["message", "numpy"])
def test_arrays_in_fortran_order_make_the_same_run(wire: str) -> None:
    """Initial arrays and replies: the bits of the run in C order."""
    client_fn = lambda context: OrderSeen(context.node_config["partition-id"]).to_client()  # noqa: E731
    app = message_app.app if wire == "message" else ClientApp(client_fn=client_fn)
    plain = run(FedAvg(wire=wire), LocalGrid(app, 3), 2, stranger_model())
    turned = run(FedAvg(wire=wire), ColumnsGrid(app, 3), 2, columns(stranger_model()))
    assert not any(phase.rejections for r in turned.reports for phase in r.phases)
    assert bits(turned.arrays[-1]) == bits(plain.arrays[-1])


@pytest.mark.parametrize("method", ["fedavg", "fedeba"])
def test_hosted_replies_in_fortran_order_make_the_same_run(method: str) -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        for reply in replies:
            for name, record in records_of(reply.content, ArrayRecord).items():
                reply.content[name] = columns(record)
        return [restored(reply) for reply in replies]

    def restored(reply: Message) -> Message:
        reply.content = unpack(pack(reply.content))
        return reply

    experiment = digits_experiment(method=method, num_rounds=2)
    turned = run_digits(experiment, tamper=tamper)
    assert not any(phase.rejections for r in turned.reports for phase in r.phases)
    assert bits(turned.arrays[-1]) == bits(run_digits(experiment).arrays[-1])


def test_legacy_client_that_fails() -> None:
    class Broken(legacy_app.FlowerClient):
        def fit(self, parameters, config):
            raise OSError("no disk")

    def client_fn(context):
        index = context.node_config["partition-id"]
        made = Broken if index == 1 else legacy_app.FlowerClient
        return made(index).to_client()

    trace = run_stranger(ClientApp(client_fn=client_fn), 1, wire="numpy")
    [rejection] = trace.reports[0].train.rejections
    assert rejection.client_id == 1001
    assert "no disk" in rejection.reason
    assert len(trace.reports[0].train.rows) == 2


class Short(legacy_app.FlowerClient):
    """Returns a part of the model that it gets, as clients with a head of their own do."""

    def fit(self, parameters, config):
        weights, count, metrics = super().fit(parameters, config)
        return weights[:-1], count, metrics


OTHER_NUMBER = (
    "3 arrays came back, 4 were sent: fit has to return as many as it gets, so start from "
    "a model of those"
)


def test_legacy_client_that_returns_another_model() -> None:
    def client_fn(context):
        index = context.node_config["partition-id"]
        made = Short if index == 1 else legacy_app.FlowerClient
        return made(index).to_client()

    trace = run_stranger(ClientApp(client_fn=client_fn), 1, wire="numpy")
    [rejection] = trace.reports[0].train.rejections
    assert (rejection.client_id, rejection.reason) == (1001, OTHER_NUMBER)


def test_legacy_clients_that_all_return_another_model_end_the_run_at_once() -> None:
    """As arrays of other names do: no later round could train."""
    app = ClientApp(client_fn=lambda context: Short(0).to_client())
    with pytest.raises(RunError, match=rf"^round 1: FedAvg: {re.escape(OTHER_NUMBER)}$"):
        run_stranger(app, 3, wire="numpy")


def test_methods_that_a_legacy_app_cannot_serve() -> None:
    class Probing(FedAvg):
        def train_exchange(self, arrays, client_ids):
            list(self.exchange(Exchange("query.probe", client_ids)))
            return super().train_exchange(arrays, client_ids)

    def start(strategy: FederatedStrategy) -> None:
        run(strategy, LocalGrid(legacy_app.app, 3), 1, stranger_model())

    with pytest.raises(RecordError, match=r"cannot answer 'query\.probe': use a method"):
        start(Probing(wire="numpy"))
    with pytest.raises(RecordError, match="takes one list of arrays"):
        start(Standalone(wire="numpy"))
    with pytest.raises(ValueError, match="wire = 'numpy' cannot go with identity = 'part"):
        FedAvg(wire="numpy", identity="partition")


def test_legacy_app_on_the_wrong_wire_is_rejected_and_says_what_is_missing() -> None:
    with pytest.raises(RunError, match=r"^round 1: .*fitins\.parameters.*wire='numpy'"):
        run_stranger(legacy_app.app, 3)


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4"])
def test_floats_of_another_width_or_byte_order(
    dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    """NumPy makes float64 of what arrives as float32; Flower's strategies take it."""

    def change(content: RecordDict, prefix: str) -> None:
        arrays = to_arrays(content.array_records[prefix + "arrays"])
        set_arrays(**{k: a.astype(dtype) for k, a in arrays.items()})(content, prefix)

    grid = TamperingGrid(matrix_app(), 3, for_client(1, "single", change), (1, 2))
    trace = run(FedAvg(), grid, 2)
    assert trace.weights == [MEAN_OF_ALL] * 2
    assert trace.arrays[-1]["weight"].dtype == np.float32
    told = [r.getMessage() for r in caplog.records if "floats are turned" in r.getMessage()]
    assert len(told) == 1
    assert f"array weight from {np.dtype(dtype)} to float32" in told[0]
    size = 4 * (4 + np.dtype(dtype).itemsize + 4)
    assert [report.train.bytes_up for report in trace.reports] == [size, size]


# Strangers' own strategies, which stand on ours


def started(strategy_class: type[FedAvg], num_rounds: int, **options: Any) -> Any:
    with flower_identity():
        return strategy_class().start(
            LocalGrid(message_app.app, 3), stranger_model(), num_rounds, **options
        )


def test_what_an_overridden_configure_writes_into_the_config_stays() -> None:
    seen = []

    class Halved(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            if server_round == 2:
                config["lr"] = config["lr"] * 0.5
            messages = super().configure_train(server_round, arrays, config, grid)
            seen.append(messages[0].content["config"]["lr"])
            return messages

    config = ConfigRecord({"lr": 0.4})
    started(Halved, 3, train_config=config)
    assert seen == [0.4, 0.2, 0.2]
    assert config["lr"] == 0.2


def test_a_line_that_imports_flowers_other_names_too() -> None:
    from fedsuite import strategies

    assert strategies.Result is flower.Result
    assert strategies.Strategy is flower.Strategy


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_messages_that_the_strategy_did_not_make_are_refused(phase: str) -> None:
    """Its model would otherwise stay as it was, in every round, without a word."""

    def configure(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node_id, phase) for node_id in grid.get_node_ids()]

    own = type("Own", (FedAvg,), {f"configure_{phase}": configure})
    with pytest.raises(
        RunError, match=rf"round 1: aggregate_{phase} .* call super\(\)\.configure_{phase}"
    ):
        started(own, 1)


def test_a_client_that_keeps_nothing_hears_what_to_send() -> None:
    with pytest.raises(RunError) as caught:
        started(Ditto, 1)
    assert str(caught.value).endswith(
        "train with fedsuite.clients.DittoClient, which keeps a personal model; a client "
        "of your own that does so sends stored-state = 1 in its metrics"
    )


# Our clients under Flower's strategies


def test_our_app_under_flowers_fedavg() -> None:
    with flower_identity():
        result = flower.FedAvg(min_available_nodes=3).start(
            LocalGrid(matrix_app(), 3), zeros(), 2
        )
    assert np.all(to_arrays(result.arrays)["weight"] == MEAN_OF_ALL)
    assert result.train_metrics_clientapp[1]["loss"] == 12.5
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 1.0


def test_our_prox_client_under_flowers_fedprox() -> None:
    """Flower's strategy sends mu under the same name."""
    training = TrainingOptions(local_steps=2, batch_size=0, learning_rate=0.5)
    app = matrix_app(MatrixProxClient, values=[4.0] * 2, counts=[1] * 2, training=training)
    with flower_identity():
        stock = flower.FedProx(proximal_mu=1.0)
        result = stock.start(LocalGrid(app, 2), zeros(), 1)
    assert np.all(to_arrays(result.arrays)["weight"] == 2.0)


def make_client(index: int) -> FedAvgClient:
    data = samples((1.0, 2.0, 4.0)[index], (1, 2, 1)[index])
    return MatrixClient(Matrix(), data, data, training=FULL_STEP, client_id=index)


def test_our_client_behind_client_fn() -> None:
    app = ClientApp(
        client_fn=lambda context: make_client(
            context.node_config["partition-id"]
        ).to_client()
    )
    trace = run(FedAvg(wire="numpy"), LocalGrid(app, 3), 2)
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]


def test_our_client_under_flowers_legacy_fedavg() -> None:
    """Flower's own legacy server loop, by its parts: fit_ins out, fit_res aggregated."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.common import parameters_to_ndarrays as to_ndarrays
    from flwr.server.strategy import FedAvg as LegacyFedAvg

    results = []
    for index in range(3):
        weights, count, metrics = make_client(index).fit([np.zeros((2, 2), "float32")], {})
        parameters = ndarrays_to_parameters(weights)
        status = Status(Code.OK, "")
        results.append((None, FitRes(status, parameters, count, metrics)))
    merged, _ = LegacyFedAvg().aggregate_fit(1, results, [])  # type: ignore[arg-type]
    assert merged is not None
    assert np.all(to_ndarrays(merged)[0] == MEAN_OF_ALL)


def test_fit_and_evaluate_by_hand() -> None:
    client = make_client(1)
    start = [np.zeros((2, 2), dtype=np.float32)]
    start[0].flags.writeable = False
    arrays, count, metrics = client.fit(start, {})
    assert arrays[0].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert (count, metrics) == (2, {"loss": 8.0, "num-steps": 1})
    loss, count, metrics = client.evaluate(arrays, {})
    assert loss == pytest.approx(np.log(2))
    assert (count, metrics) == (2, {"accuracy": 1.0})
    assert client.get_parameters({})[0].tolist() == arrays[0].tolist()
    assert isinstance(client.store, MemoryStore)


def test_wrong_number_of_arrays_by_hand() -> None:
    with pytest.raises(RunError, match="client 1: got 2 arrays, its model has 1"):
        make_client(1).fit([np.zeros(1)] * 2, {})
