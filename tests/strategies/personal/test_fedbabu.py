"""FedBABU: the head never moves, and with one that does the model is FedAvg's."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients.personal import fedbabu
from fedsuite.clients.personal.fedbabu import FedBABUClient
from fedsuite.core.errors import ConfigError
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.messages.records import ARRAYS, Arrays, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.groups import ParameterGroups
from fedsuite.models.head import head_names
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.personal.fedbabu import FedBABU
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.loop import TrainingOptions
from tests.helpers import Trace, aggregated, bits, digits_experiment, final_bits, play

MLP: dict[str, Any] = {"model": "mlp", "hidden_width": 8}
BABU: dict[str, Any] = {"method": "fedbabu", **MLP}
GROUPS = ParameterGroups(head=("head",), other=("body",))


def initial() -> tuple[Arrays, frozenset[str]]:
    """Return the model that runs begin with, and the names of its head."""
    experiment = digits_experiment(**BABU)
    model = network_model(experiment, federated_data(experiment))
    return model_arrays(model), head_names(model)


def scores(trace: Trace) -> list[list[float]]:
    rounds = [report.evaluate for report in trace.reports]
    return [[row["loss"] for row in found.rows] for found in rounds if found]


def test_golden_mean() -> None:
    """By hand: bodies 1 and 5 of 3 rows and 1, so 2; the head is not asked for."""
    strategy = FedBABU(groups=GROUPS)
    sent = {"body": np.zeros(1), "head": np.array([7.0])}
    exchange = strategy.train_exchange(sent, [0, 1])
    assert set(exchange.shared[ARRAYS]) == {"body", "head"}
    assert set(exchange.expected.arrays[ARRAYS]) == {"body"}
    bodies = [(1.0, 3), (5.0, 1)]
    replies: Iterator[ClientReply] = (
        ClientReply(k, {ARRAYS: {"body": np.array([value])}}, {}, count)
        for k, (value, count) in enumerate(bodies)
    )
    mean = aggregated(strategy, sent, replies)
    assert mean is not None
    assert {n: float(a[0]) for n, a in mean.items()} == {"body": 2.0, "head": 7.0}


@settings(max_examples=5, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "weight_decay": st.sampled_from([0.0, 0.1]),
            "momentum": st.sampled_from([0.0, 0.9]),
            "server_momentum": st.sampled_from([0.0, 0.5]),
            "fine_tune_part": st.sampled_from(["full", "head"]),
        }
    )
)
def test_the_head_has_its_first_bits_after_any_round(changes: dict[str, Any]) -> None:
    first, head = initial()
    for arrays in play(**BABU, num_rounds=2, **changes).arrays:
        for name, found in bits(arrays).items():
            assert (found == bits(first)[name]) is (name in head)


def test_a_head_that_learns_and_travels_makes_it_fedavg(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = final_bits(method="fedavg", **MLP)
    assert final_bits(**BABU) != plain
    monkeypatch.setattr(fedbabu, "head_names", lambda model: frozenset())
    whole = property(lambda groups: frozenset(groups.names))
    monkeypatch.setattr(ParameterGroups, "body", whole)
    assert final_bits(**BABU) == plain


def test_under_a_head_of_zeros_no_body_learns() -> None:
    """The body's gradient goes through the head, which stays zero in later steps too."""
    sent, head = initial()
    sent = {n: np.zeros_like(a) if n in head else a for n, a in sent.items()}
    experiment = digits_experiment(**BABU)
    data = federated_data(experiment)
    client = FedBABUClient(
        network_model(experiment, data),
        data.client(0).train,
        data.client(0).test,
        training=TrainingOptions(local_steps=3, batch_size=8, learning_rate=0.1),
    )
    reply = client.answer(Request("train", 0, {ARRAYS: sent}, {"server-round": 1}))
    body = {n: a for n, a in sent.items() if n not in head}
    assert bits(reply.arrays[ARRAYS]) == bits(body)


def test_no_epochs_score_the_model_of_the_server() -> None:
    trace = play(**BABU, fine_tune_epochs=0)
    experiment = digits_experiment(**BABU)
    data = federated_data(experiment)
    model = network_model(experiment, data)
    load_arrays(model, trace.arrays[-1])
    losses = [evaluate_model(model, data.client(k).test)[0] for k in range(4)]
    assert scores(trace)[-1] == losses


def test_each_part_tunes_otherwise_and_leaves_the_model_of_the_server() -> None:
    traces = [play(**BABU, fine_tune_part=part) for part in ("full", "head", "body")]
    assert len({tuple(scores(trace)[0]) for trace in traces}) == 3
    first = bits(traces[0].arrays[-1])
    assert all(bits(trace.arrays[-1]) == first for trace in traces)


@pytest.mark.parametrize("part", ["full", "head", "body"])
def test_tuning_moves_the_part_that_is_named(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[dict[str, bytes]] = []
    evaluation = FedBABUClient.evaluation

    def watched(client: FedBABUClient, model: nn.Module) -> Any:
        scored.append(bits(model_arrays(model)))
        return evaluation(client, model)

    monkeypatch.setattr(FedBABUClient, "evaluation", watched)
    sent = bits(play(**BABU, num_rounds=1, fine_tune_part=part).arrays[-1])
    _, head = initial()
    body = frozenset(sent) - head
    moved = [{name for name in sent if found[name] != sent[name]} for found in scored]
    assert moved == [{"full": head | body, "head": head, "body": body}[part]] * 4


def test_noise_at_the_server_moves_no_head() -> None:
    first, head = initial()
    trace = play(**BABU, dp_noise_multiplier=1.0, dp_delta=1e-3, num_rounds=1)
    for name, found in bits(trace.arrays[-1]).items():
        assert (found == bits(first)[name]) is (name in head)


def test_a_model_that_is_a_head_alone_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError), match="a head alone: choose another"):
        play(method="fedbabu", model="linear")
