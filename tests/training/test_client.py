"""The client: what it may touch, what it repeats, and what it refuses."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.averaging.fedsgd import FedSGDClient
from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.clients.personal.fedavg_ft import FedAvgFTClient
from fedsuite.core.errors import RunError
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import ERROR, Reply, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.exchange import Exchange
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import (
    FULL_STEP,
    MEAN_WITHOUT,
    Matrix,
    MatrixClient,
    TamperingGrid,
    bits,
    matrix_app,
    run,
    samples,
    strategy_for,
    zeros,
)

CLIENTS = [FedAvgClient, FedSGDClient, FedProxClient, FedAvgFTClient, StandaloneClient]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
        )


def some_data(count: int) -> Split:
    generator = torch.Generator().manual_seed(count)
    return Split(torch.randn(count, 4, generator=generator), torch.arange(count) % 3)


def make(
    client_class: type[FederatedClient], client_id: int = 0, **options
) -> FederatedClient:
    training = TrainingOptions(local_epochs=2, batch_size=8, **options)
    return client_class(
        network(), some_data(22), some_data(9), training=training, client_id=client_id
    )


def request(kind: str = "train", client_id: int = 0, server_round: int = 1) -> Request:
    arrays = to_arrays(to_record(model_arrays(network())))
    config = {"server-round": server_round, "proximal-mu": 0.1, "fine-tune-epochs": 1}
    return Request(kind, client_id, {"arrays": arrays}, config, new_version="1.1")


def answer_bits(reply: Reply) -> object:
    arrays = {name: bits(record) for name, record in reply.arrays.items()}
    return arrays, dict(reply.metrics)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("client_class", CLIENTS)
def test_a_round_is_repeatable_and_touches_nothing_global(
    client_class: type[FederatedClient], kind: str
) -> None:
    asked = request(kind)
    sent = {name: array.copy() for name, array in asked.arrays["arrays"].items()}
    client = make(client_class)
    features = client.train_data.features.clone()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = client.answer(asked)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    np.random.seed(12)
    again = client.answer(asked)
    fresh = make(client_class).answer(asked)
    assert answer_bits(first) == answer_bits(again) == answer_bits(fresh)
    assert bits(asked.arrays["arrays"]) == bits(sent)
    assert torch.equal(client.train_data.features, features)


def test_reply_does_not_share_memory_with_the_model() -> None:
    client = make(FedAvgClient)
    first = client.on_train(request())
    kept = bits(first.arrays["arrays"])
    client.on_train(request(server_round=2))
    assert bits(first.arrays["arrays"]) == kept


@pytest.mark.parametrize("change", [{"client_id": 1}, {"server_round": 2}])
def test_clients_and_rounds_have_streams_of_their_own(change: dict[str, int]) -> None:
    one = make(FedAvgClient).on_train(request())
    other = make(FedAvgClient, client_id=change.get("client_id", 0)).on_train(
        request(server_round=change.get("server_round", 1))
    )
    assert bits(one.arrays["arrays"]) != bits(other.arrays["arrays"])


def test_dropout_draws_anew_in_each_step_and_round() -> None:
    class Watching(FedAvgClient):
        masks: list[list[float]]

        def loss(self, model, features, labels):
            self.masks.append(functional_dropout())
            return super().loss(model, features, labels)

    def functional_dropout() -> list[float]:
        return torch.nn.functional.dropout(torch.ones(32)).tolist()

    client = make(Watching)
    client.masks = []
    for server_round in (1, 2):
        client.on_train(request(server_round=server_round))
    assert len(client.masks) == 12
    assert len({tuple(mask) for mask in client.masks}) == 12


def test_fine_tuning_puts_the_usual_training_back() -> None:
    client = make(FedAvgFTClient, learning_rate=1e30)
    usual = client.training
    with pytest.raises(RunError, match="client 0, round 1: the training loss is"):
        client.answer(request("evaluate"))
    assert client.training is usual


def test_loss_that_is_not_finite_names_client_and_round() -> None:
    client = make(FedAvgClient, client_id=6, learning_rate=1e30)
    with pytest.raises(
        RunError, match="client 6, round 4: the training loss is nan: lower"
    ):
        client.on_train(request(server_round=4))


def test_loss_that_is_not_finite_is_a_rejection_on_the_server() -> None:
    class Diverging(MatrixClient):
        def loss(self, model, features, labels):
            factor = float("inf") if self.client_id == 1 else 1.0
            return factor * super().loss(model, features, labels)

    for layout, number in (("single", 1001), ("hosted", 1)):
        trace = run(strategy_for(layout), TamperingGrid(matrix_app(Diverging), 3))
        [rejection] = trace.reports[0].train.rejections
        assert rejection.client_id == number
        assert "client 1, round 1: the training loss is inf" in rejection.reason
        assert trace.weights == [MEAN_WITHOUT[1]]


@pytest.mark.parametrize("client_class", CLIENTS)
def test_client_without_samples(client_class: type[FederatedClient]) -> None:
    asked = request()
    nothing = some_data(0)
    client = client_class(network(), nothing, nothing)
    reply = client.answer(asked)
    assert reply.metrics["num-examples"] == 0
    assert reply.metrics["loss"] == 0.0
    assert reply.metrics["num-steps"] == 0
    if reply.arrays:
        assert bits(reply.arrays["arrays"]) == bits(asked.arrays["arrays"])
    evaluated = client.answer(request("evaluate"))
    assert evaluated.metrics["num-examples"] == 0


def test_client_without_samples_counts_nothing_in_the_mean() -> None:
    app = matrix_app(values=[1.0, 50.0, 4.0], counts=[1, 0, 1])
    trace = run(strategy_for("hosted"), TamperingGrid(app, 3))
    assert trace.weights == [2.5]
    assert not trace.reports[0].train.rejections


def test_model_of_another_shape_is_refused() -> None:
    client = MatrixClient(Matrix(), samples(1.0, 1), samples(1.0, 1))
    wrong = Request("train", 0, {"arrays": {"weight": np.zeros((1, 2), np.float32)}})
    with pytest.raises(RunError, match=r"array weight of shape \(1, 2\) does not fit"):
        client.on_train(wrong)


def test_state_is_stored_only_where_the_server_names_a_version() -> None:
    client = StandaloneClient(network(), some_data(9), some_data(9))
    by_hand = Request("train", 0)
    assert "stored-state" not in client.on_train(by_hand).metrics
    named = Request("train", 0, new_version="1.1")
    assert client.on_train(named).metrics["stored-state"] == 1
    assert set(client.store.load(0, "1.1")) == set(network().state_dict())


def test_message_that_a_client_does_not_answer() -> None:
    client = make(FedAvgClient)
    with pytest.raises(RunError, match=r"FedAvgClient does not answer 'query\.probe'"):
        client.answer(Request("query.probe", 0))


def test_actions_are_routed_by_their_names() -> None:
    class Asking(MatrixClient):
        SENDS: ClassVar[frozenset[str]] = MatrixClient.SENDS | {"seen"}
        ACTIONS: ClassVar[Mapping[str, str]] = {
            **MatrixClient.ACTIONS,
            "query.probe": "on_probe",
            "train.extra": "on_train",
        }

        def on_probe(self, request: Request) -> Reply:
            return Reply(metrics={"num-examples": 1, "seen": self.client_id})

    class Probing(FedAvg):
        def train_exchange(self, arrays, client_ids):
            replies = list(self.exchange(Exchange("query.probe", client_ids)))
            self.seen = [reply.metrics["seen"] for reply in replies]
            return super().train_exchange(arrays, client_ids)

    def client_fn(context, client_id):
        data = samples(1.0, 1)
        return Asking(Matrix(), data, data, training=FULL_STEP, client_id=client_id)

    strategy = Probing(identity="partition", num_clients=3)
    run(
        strategy, LocalGrid(make_client_app(client_fn, list(Asking.ACTIONS)), 3), 1, zeros()
    )
    assert strategy.seen == [0, 1, 2]


@pytest.mark.parametrize("client_class", CLIENTS)
def test_validation_rows_are_scored_and_never_trained_on(
    client_class: type[FederatedClient],
) -> None:
    kept = some_data(11)

    def asked(validation: Split | None) -> tuple[list[np.ndarray], int, dict[str, object]]:
        client = client_class(network(), some_data(24), some_data(9), validation=validation)
        parameters = client.get_parameters({})
        config = {"server-round": 1, "proximal-mu": 0.1}
        trained, count, _ = client.fit(parameters, config)
        loss, _, metrics = client.evaluate(trained or parameters, config)
        return [*trained, np.array(loss)], count, metrics

    plain, with_rows = asked(None), asked(kept)
    assert all(map(np.array_equal, plain[0], with_rows[0]))
    assert plain[1] == with_rows[1] == 24
    new = {"validation-loss", "validation-accuracy", "validation-examples"}
    assert set(with_rows[2]) - set(plain[2]) == new
    assert with_rows[2]["validation-examples"] == 11


def test_scores_of_validation_rows_are_those_of_a_client_tested_on_them() -> None:
    test, kept = some_data(9), some_data(11)
    one = FedAvgClient(network(), some_data(24), test, validation=kept)
    other = FedAvgClient(network(), some_data(24), kept)
    _, _, found = one.evaluate(one.get_parameters({}), {})
    loss, count, wanted = other.evaluate(other.get_parameters({}), {})
    told = [found[f"validation-{name}"] for name in ("loss", "accuracy", "examples")]
    assert told == [loss, wanted["accuracy"], count]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("asked", [[2, 0], [1]])
def test_rows_of_several_clients_are_read_before_the_first_answers(
    asked: list[int], fails: bool
) -> None:
    calls: list[object] = []

    def read_ahead(context: Context, client_ids: Sequence[int]) -> None:
        calls.append(list(client_ids))
        if fails:
            raise OSError

    def client_fn(context: Context, client_id: int) -> FederatedClient:
        calls.append(client_id)
        return make(FedAvgClient, client_id)

    app = make_client_app(client_fn, ["train"], read_ahead=read_ahead)
    arrays = to_record(model_arrays(network()))
    config = ConfigRecord({"server-round": 1, "client-ids": asked})
    content = RecordDict({"arrays": arrays, "config": config})
    with flower_identity():
        reply = app(Message(content, 1, "train"), Context(1, 1, {}, RecordDict(), {}))
    assert calls == [*([asked] if len(asked) > 1 else []), *asked]
    assert not any(name.endswith(ERROR) for name in reply.content)
