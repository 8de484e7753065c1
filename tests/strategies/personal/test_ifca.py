"""IFCA: choices and means by hand, FedAvg's plain mean, false choices, state."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedsuite
from fedsuite.clients.personal.ifca import IFCAClient
from fedsuite.messages.records import ARRAYS, CLUSTER, Reply, Request
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import BadReply, ClientReply, Expected, check_reply
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.personal.ifca import IFCA
from tests.helpers import Trace, aggregated, bits, play
from tests.small_runs import SMALL, final_model
from tests.strategies.personal.by_hand import Answered, train_once

KEYS: dict[str, Any] = {"model": "mlp", "hidden_width": 16, "partitioner": "dirichlet"}


def asked(centre: float, rate: float = 1.0) -> Answered:
    """Return the answer of a client that receives 0 and 4, and is best at ``centre``."""
    return train_once(IFCAClient, {}, others=[4.0], centre=centre, learning_rate=rate)


def after(answers: Sequence[Answered]) -> tuple[IFCA, list[float]]:
    """Return the strategy and its models after a round from 7 and 9."""
    strategy = IFCA()
    strategy.reports["train"] = PhaseReport("train", {})
    strategy.round_metrics = {}
    strategy.others = [{"x": np.array([9.0])}]
    replies = [
        ClientReply(
            k,
            {name: {"x": np.array([number])} for name, number in found.records.items()},
            {CLUSTER: float(found.metrics[CLUSTER])},
            10.0 * k + 1,
        )
        for k, found in enumerate(answers)
    ]
    first = aggregated(strategy, {"x": np.array([7.0])}, iter(replies))
    assert first is not None
    return strategy, [float(a["x"][0]) for a in (first, *strategy.others)]


def test_golden_round() -> None:
    """By hand: 1 is nearer to 0, 4 to 4, and 2 to both, so choices are 0, 1, 0.

    Steps of 1, 1 and 2.5 lead to 1, 4 and 5: plain means 3 and 4.
    """
    answers = [asked(1.0), asked(4.0), asked(2.0, rate=2.5)]
    assert [found.metrics[CLUSTER] for found in answers] == [0, 1, 0]
    expected = [{ARRAYS: 1.0}, {"model-1": 4.0}, {ARRAYS: 5.0}]
    assert [found.records for found in answers] == [pytest.approx(e) for e in expected]
    strategy, models = after(answers)
    assert models == pytest.approx([3.0, 4.0])
    assert strategy.round_metrics == {"cluster_0_clients": 2.0, "cluster_1_clients": 1.0}


def test_the_scored_model_is_the_received_one_that_fits_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training left 3.95. Of 0 and 4, which come to be scored, 4 is nearer to 3.9."""
    client = asked(3.9, rate=0.5).client

    def scored(client: IFCAClient, model: nn.Module) -> Reply:
        (number,) = model.parameters()
        return Reply({}, {"loss": float(number)})

    monkeypatch.setattr(IFCAClient, "evaluation", scored)
    sent = {ARRAYS: {"x": np.zeros(1)}, "model-1": {"x": np.full(1, 4.0)}}
    reply = client.answer(Request("evaluate", 0, sent, {"server-round": 1}))
    assert reply.metrics == {"loss": 4.0}


def test_a_model_that_nobody_chose_stays() -> None:
    assert after([asked(6.0), asked(8.0)])[1] == pytest.approx([7.0, 7.0])
    assert after([asked(-6.0), asked(0.0)])[1] == pytest.approx([-3.0, 9.0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-9, 9))
def test_the_choice_is_the_first_of_the_least_losses(models: list[int], best: int) -> None:
    first, *others = map(float, models)
    found = train_once(
        IFCAClient, {}, received=first, others=others, centre=best, learning_rate=1.0
    )
    gaps = [abs(model - best) for model in models]
    assert found.metrics[CLUSTER] == gaps.index(min(gaps))
    assert found.sent == pytest.approx(best)


def test_one_model_is_the_plain_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    found = play(method="ifca", ifca_models=1, **KEYS)
    monkeypatch.setattr(FedAvg, "weight_of", lambda self, r: float(r.num_examples > 0))
    assert bits(found.arrays[-1]) == bits(play(method="fedavg", **KEYS).arrays[-1])


def clusters(trace: Trace) -> list[list[float]]:
    rounds = [report.train for report in trace.reports]
    return [[row[CLUSTER] for row in found.rows] for found in rounds if found]


def test_clients_of_other_data_find_their_own_models() -> None:
    trace = play(method="ifca", seed=3, num_rounds=4, classes_per_client=5, model="mlp",
                 partitioner="pathological")  # fmt: skip
    assert {0.0, 1.0} == set(clusters(trace)[-1])
    sizes = trace.reports[-1].metrics
    assert sizes["cluster_0_clients"] + sizes["cluster_1_clients"] == 4


@pytest.mark.parametrize("number", [0, 1, 2, 0.5])
def test_a_choice_that_is_another_models_is_not_used(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = IFCAClient.on_train

    def lying(client: IFCAClient, request: Request) -> Reply:
        reply = honest(client, request)
        if client.client_id:
            return reply
        (model,) = reply.arrays.values()
        return Reply({"model-1": model}, {**reply.metrics, CLUSTER: number})

    monkeypatch.setattr(IFCAClient, "on_train", lying)
    trace = play(method="ifca", num_rounds=1, **KEYS)
    rejected = [r.client_id for phase in trace.reports[0].phases for r in phase.rejections]
    assert rejected == ([] if number == 1 else [0])


def test_one_of_the_announced_records_must_come() -> None:
    spec = {"w": ((1,), "float64")}
    expected = Expected({ARRAYS: spec, "model-1": spec}, one_of=True)
    record = ArrayRecord({})
    for names, words in (
        ((), "array record 'arrays' is missing"),
        ((ARRAYS, "model-1"), "2 array records came, and one"),
        (("model-1", "more"), "unexpected array record: more"),
    ):
        with pytest.raises(BadReply, match=words):
            check_reply(0, dict.fromkeys(names, record), expected)


def test_a_model_is_bounded_by_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = IFCAClient.on_train

    def huge(client: IFCAClient, request: Request) -> Reply:
        (model,) = honest(client, request).arrays.values()
        moved = {n: 1e6 * (client.client_id == 0) + a for n, a in model.items()}
        metrics = {**client.train_metrics(client.train_locally(request)), CLUSTER: 1}
        return Reply({"model-1": moved}, metrics)

    monkeypatch.setattr(IFCAClient, "on_train", huge)
    trace = play(method="ifca", num_rounds=1, **KEYS)
    assert trace.reports[0].train is not None
    (bounded,) = trace.reports[0].train.bounded
    assert (bounded.client_id, "model-1" in bounded.reason) == (0, True)


def test_resumed_is_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {**SMALL, "method": "ifca", "ifca-models": 3}
    short = fedsuite.run({**keys, "num-rounds": 2, "run-name": "short"})
    longer = fedsuite.resume(short.path, num_rounds=4)
    whole = fedsuite.run({**keys, "num-rounds": 4, "run-name": "whole"})
    assert final_model(longer.path) == final_model(whole.path)
    found = longer.client_values("evaluate", "loss")
    assert found == whole.client_values("evaluate", "loss")
