"""FedProx + fine-tuning: FedProx's training, FedAvg + fine-tuning's evaluation."""

from typing import Any

import numpy as np
import pytest

from fedsuite.clients.personal.fedavg_ft import FedAvgFTClient
from fedsuite.clients.personal.fedprox_ft import FedProxFTClient
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.strategies.personal.fedprox_ft import FedProxFT
from tests.helpers import (
    FULL_STEP,
    Matrix,
    MatrixLoss,
    Trace,
    bits,
    play,
    samples,
)


def scores(trace: Trace) -> list[list[float]]:
    return [[row["loss"] for row in report.evaluate.rows] for report in trace.reports]


def test_trains_as_fedprox() -> None:
    both = play(method="fedprox-ft", proximal_mu=0.5)
    prox = play(method="fedprox", proximal_mu=0.5)
    assert bits(both.arrays[-1]) == bits(prox.arrays[-1])
    assert bits(both.arrays[-1]) != bits(
        play(method="fedprox-ft", proximal_mu=0.0).arrays[-1]
    )
    assert scores(both) != scores(prox)
    assert scores(play(method="fedprox-ft", proximal_mu=0.5, fine_tune_epochs=0)) == scores(
        prox
    )


def test_without_mu_it_is_fedavg_with_fine_tuning() -> None:
    both = play(method="fedprox-ft", proximal_mu=0.0, fine_tune_epochs=2)
    plain = play(method="fedavg-ft", fine_tune_epochs=2)
    assert bits(both.arrays[-1]) == bits(plain.arrays[-1])
    assert scores(both) == scores(plain)


class Prox(MatrixLoss, FedProxFTClient):
    pass


class Plain(MatrixLoss, FedAvgFTClient):
    pass


@pytest.mark.parametrize("trained_before", [False, True])
def test_tunes_without_the_term(trained_before: bool) -> None:
    """Whatever the client received when it trained last, if it ever did."""
    data = samples(4.0, 2)
    losses = []
    for kind in (Plain, Prox):
        client = kind(Matrix(), data, data, training=FULL_STEP)
        if trained_before:
            far = {"weight": np.full((2, 2), 100.0, np.float32)}
            client.answer(Request("train", 0, {ARRAYS: far}, {"proximal-mu": 0.5}))
        near = {"weight": np.zeros((2, 2), np.float32)}
        config = {"fine-tune-epochs": 3}
        client.answer(Request("evaluate", 0, {ARRAYS: near}, config))
        losses.append(client.model.weight.detach().numpy().tolist())
    assert losses == [[[4.0, 4.0], [4.0, 4.0]]] * 2


@pytest.mark.parametrize("bad", [{"proximal_mu": -1.0}, {"fine_tune_epochs": -1}])
def test_bad_options(bad: dict[str, Any]) -> None:
    [name] = bad
    with pytest.raises(ValueError, match=f"{name} = "):
        FedProxFT(**bad)
