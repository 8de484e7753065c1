"""What filter decomposition costs to communicate: the paper's account and the true one."""

from typing import Any

import pytest
from flwr.app import Message

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.fair.fedeba import FedEBAPlusClient
from fedsuite.messages.decomposition import SLOW
from fedsuite.messages.records import ARRAYS, Reply, Request
from fedsuite.models import build_model, decompose, parameter_groups
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies.fair.fedeba_plus import FedEBAPlus
from tests.helpers import Trace
from tests.strategies.decomposition.factored import (
    CLIENTS,
    Recorder,
    arrays_in,
    federate,
    make_app,
    no_evaluation,
    payload,
    total,
    wrap,
)


class Echo(FedAvgClient):
    """Sends back what it got."""

    def on_train(self, request: Request) -> Reply:
        return Reply({ARRAYS: request.arrays[ARRAYS]}, {"num-examples": 1})


def lenet_run(
    num_clients: int, decomposed: bool, period: int = 1
) -> tuple[Trace, Recorder]:
    """Run 10 rounds of the paper's network for 100 classes on clients that echo."""
    model = build_model("cnn", (3, 32, 32), 100, 0)
    if decomposed:
        model = decompose(model, 9, initialisation="kaiming-both")
    groups = parameter_groups(model)
    app = make_app(Echo, model=lambda: model, groups=groups, wrapped=decomposed)
    strategy: Any = no_evaluation()
    if decomposed:
        # Anything that needs the clients: the account is the same at period 1.
        strategy = wrap(
            strategy, groups=groups, coefficient_period=period, freeze_atoms=True
        )
    grid = Recorder(app, num_clients)
    return federate(strategy, grid, 10, model_arrays(model)), grid


def test_golden_counts_of_the_papers_account() -> None:
    """Specification's test 11: uploads of 10 clients in 10 rounds, fast set with head."""
    trace, _ = lenet_run(10, True, period=5)
    assert total(trace, "nominal_parameters_up") == 16_523_480
    assert total(trace, "nominal_parameters_down") == 16_523_480
    assert total(trace, "nominal_bytes_up") == 4 * 16_523_480
    # Echoes change nothing, so that nobody lacks an array twice: the least that can be.
    assert total(trace, "true_parameters_up") == 16_523_480
    assert total(trace, "true_parameters_down") == 10 * (747_174 + 9 * 19_750)
    trace, _ = lenet_run(10, True)
    assert total(trace, "nominal_parameters_up") == 74_717_400
    dense, grid = lenet_run(10, False)
    assert total(dense, "bytes_up") == 4 * 81_533_200 == payload(grid.replies)


@pytest.mark.parametrize("mode", ["discard", "persist"])
def test_true_account_is_what_stands_in_the_messages(mode: Any) -> None:
    inner = no_evaluation(clients_per_round=2, seed=3)
    grid = Recorder(make_app())
    trace = federate(wrap(inner, coefficient_period=3, local_coefficients=mode), grid, 7)
    for report in trace.reports:
        sent = payload(grid.of_round(report.server_round))
        back = payload(grid.replies_of(report.server_round))
        assert report.metrics["true_bytes_down"] == sent == report.metrics["bytes_down"]
        assert report.metrics["true_bytes_up"] == back == report.metrics["bytes_up"]
        assert report.metrics["true_parameters_down"] == sent / 4
    assert total(trace, "true_bytes_down") > total(trace, "nominal_bytes_down")
    assert total(trace, "true_bytes_up") == total(trace, "nominal_bytes_up")


def test_probes_are_counted_and_get_the_fast_set() -> None:
    """A method's second exchange in a round does not send the slow arrays again."""
    inner = FedEBAPlus(min_available_nodes=1, fraction_evaluate=0.0, seed=1)
    grid = Recorder(make_app(FedEBAPlusClient))
    strategy = wrap(inner, coefficient_period=2, local_coefficients="freeze")
    trace = federate(strategy, grid, 3)
    for report in trace.reports:
        assert not report.metrics["replies_rejected"]
        mine = [m for m in grid.sent if _round_of(m) == report.server_round]
        assert report.metrics["true_bytes_down"] == payload(mine)
        lacking = [m for m in mine if SLOW in arrays_in(m)]
        assert len(lacking) == (0 if report.server_round == 3 else CLIENTS)
        back = [m for m in grid.replies if _round_of(m) == report.server_round]
        assert report.metrics["true_bytes_up"] == payload(back)


def _round_of(message: Message) -> int:
    return int(message.metadata.group_id.partition(".")[0] or 0)
