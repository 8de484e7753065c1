"""What a plugged-in strategy tells: what Flower's tell, through Flower's logger, once."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp import strategy as flower

from fedsuite.core.errors import RunError
from fedsuite.core.logs import log_scope
from fedsuite.engines.local import LocalGrid
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import for_client, run_tampered, set_metrics
from tests.rounds.test_strangers import stranger_model
from tests.strangers import message_app

Caplog = pytest.LogCaptureFixture


@pytest.fixture
def told(caplog: Caplog) -> Callable[[], list[str]]:
    """Return a function that returns the lines at Flower's logger."""
    caplog.set_level(logging.INFO)
    return lambda: [r.getMessage() for r in caplog.records if r.name == "flwr"]


def evaluate(server_round: int, arrays: Any) -> MetricRecord:
    return MetricRecord({"score": server_round})


def start(strategy: Any, begin: Any = None, **options: Any) -> None:
    begin = begin or type(strategy).start
    options.setdefault("evaluate_fn", evaluate)
    config = ConfigRecord({"lr": 0.5, "key": b"secret"})
    with flower_identity():
        begin(
            strategy,
            LocalGrid(message_app.app, 3),
            stranger_model(),
            2,
            train_config=config,
            **options,
        )


def without_numbers(lines: list[str]) -> list[str]:
    """Return lines with their measured numbers masked, those of settings left out."""
    masked = (re.sub(r"[\d.]+(e[-+]\d+)?", "#", line) for line in lines)
    return [line for line in masked if line.strip() and "│" not in line and "├" not in line]


def test_a_run_tells_what_flowers_own_tells(told: Any, caplog: Caplog) -> None:
    start(flower.FedAvg(min_train_nodes=3, min_evaluate_nodes=3))
    theirs = told()
    caplog.clear()
    start(FedAvg(min_available_nodes=3, seed=7))
    ours = told()
    # What they told of results stands in their order of keys, which is not ours.
    plain = [
        line for line in without_numbers(theirs) if "{" not in line and "'" not in line
    ]
    for line in plain:
        if "Keys in" not in line and "key:" not in line:
            assert line in without_numbers(ours), line
    for words in (
        "Starting FedAvg strategy:",
        "\t├── Number of rounds: 2",
        "\t├── ArrayRecord (0.00 MB)",
        "\t├── ConfigRecord (train): {'lr': 0.5, 'key': '<bytes>'}",
        "\t├── ConfigRecord (evaluate): (empty!)",
        "[ROUND 1/2]",
        "[ROUND 2/2]",
        "Final results:",
        "Initial global evaluation results: {'score': 0}",
    ):
        assert ours.count(words) == 1, words
    assert ours.count("configure_train: Sampled 3 nodes (out of 3)") == 2
    assert ours.count("aggregate_evaluate: Received 3 results and 0 failures") == 2
    metrics = [line for line in ours if "Aggregated MetricRecord: {" in line]
    assert len(metrics) == 4
    assert "train_loss" in metrics[0]
    assert "eval_acc" in metrics[1]
    assert any("seed 7" in line for line in ours)
    assert ours.index("Final results:") > ours.index("[ROUND 2/2]")
    assert [line for line in ours if "'eval_acc'" in line and line.startswith("\t")]


def test_a_reply_that_was_not_used_is_told_with_its_reason(told: Any) -> None:
    change = set_metrics(num_examples=-4)
    run_tampered("single", for_client(1, "single", change), 1)
    found = told()
    assert "round 1: client 1001 not used: num-examples is -4: must be >= 0" in found
    assert "aggregate_train: Received 2 results and 1 failures" in found


def test_a_copied_start_tells_everything_once(told: Any) -> None:
    start(FedAvg(), flower.Strategy.start)
    found = told()
    assert found.count("[ROUND 1/2]") == 1
    assert found.count("configure_train: Sampled 3 nodes (out of 3)") == 2
    assert found.count("aggregate_train: Received 3 results and 0 failures") == 2


def test_waiting_for_nodes_is_told_once(told: Any) -> None:
    with pytest.raises(RunError, match="only 3 of 4"):
        start(FedAvg(min_available_nodes=4, connect_timeout=0.6))
    waiting = [line for line in told() if line.startswith("Waiting for nodes")]
    assert waiting == ["Waiting for nodes to connect: 3 connected (minimum required: 4)."]


def test_a_run_of_fedsuite_tells_nothing_of_this(told: Any, caplog: Caplog) -> None:
    with log_scope(run="mine"):
        run_tampered("single", for_client(1, "single", set_metrics(num_examples=-4)), 1)
    assert not told()
    ours = ("fedsuite.rounds", "fedsuite.strategies")
    own = [r for r in caplog.records if r.name.startswith(ours)]
    summary, refused = own
    assert summary.getMessage() == "FedAvg: seed 0, quorum 1"
    assert refused.levelname == "WARNING"
    assert "client 1001 not used" in refused.getMessage()
