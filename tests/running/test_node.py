"""What a message can make a node import: nothing that its operator did not choose."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import Value
from fedsuite.engines.deployment import allowed_by_starter
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.plug_ins import ALLOWED_CODE, ALLOWED_CODE_VARIABLE
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    EVALUATE,
    HELLO,
    TRAIN,
)
from fedsuite.running.node import node_experiment
from fedsuite.running.node_app import app, client_from_context
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.workarounds.identity import flower_identity
from tests.plug_ins.fakes import example, installed, write_package

REFUSED = "which this node does not import for a message"


@pytest.fixture
def trap(tmp_path: Path):
    """Yield a file that a module writes when it is imported, though it is installed."""
    mark = tmp_path / "imported"
    source = (
        f"open({str(mark)!r}, 'w').close()\ndef read(*words): return None\nNet = read\n"
    )
    write_package(tmp_path, "trap", {}, {"trap_module": source})
    with installed(tmp_path):
        yield mark


def answers(config: Mapping[str, Value], kind: str = HELLO) -> Message:
    """Return a node's answer to a message of a run with this configuration."""
    content = RecordDict({"arrays": to_record({})})
    with flower_identity():
        (reply,) = LocalGrid(app, 1, config).send_and_receive(
            [Message(content, 1000, kind)]
        )
    return reply


@pytest.mark.parametrize("kind", [HELLO, TRAIN, EVALUATE])
@pytest.mark.parametrize(
    "config", [{"model": "trap_module:Net"}, {"dataset": "trap_module:read"}]
)
def test_no_message_makes_a_node_import_a_module(
    trap: Path, config: dict[str, Value], kind: str
) -> None:
    reply = answers(config, kind)
    assert reply.has_error() and REFUSED in reply.error.reason
    assert not trap.exists()


@pytest.mark.parametrize(
    "config",
    [
        {"method": "trap_module:Net"},
        {"partitioner": "trap_module:Net"},
        {"client-models": "trap_module:Net", "method": "fedal", "public-size": 9},
        {"cfd-server-model": "trap_module:Net", "method": "cfd", "public-size": 9},
        {"model": "trap_module:Net", "allowed-code": "trap_module:Net"},
    ],
    ids=lambda config: next(iter(config)),
)
def test_no_other_key_does(trap: Path, config: dict[str, Value]) -> None:
    assert answers(config, TRAIN).has_error()
    assert not trap.exists()


@pytest.mark.parametrize("code", ["os:system", "subprocess:run", "builtins:exec"])
def test_a_callable_of_the_library(code: str) -> None:
    for key in ("model", "dataset"):
        with pytest.raises(ConfigError, match=f"{REFUSED}: its operator may allow it"):
            node_experiment({key: code}, {"partition-id": 0})


def test_a_client_is_not_made_either(trap: Path) -> None:
    config = {"model": "trap_module:Net"}
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), config)
    with pytest.raises(ConfigError, match=REFUSED):
        client_from_context(context, 0)
    assert not trap.exists()


def test_the_operator_allows_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"model": "own_nets:Net"}
    allowed = {ALLOWED_CODE: "other:Net, own_nets:Net"}
    assert node_experiment(named, allowed)["model"] == "own_nets:Net"
    with pytest.raises(ConfigError, match=REFUSED):
        node_experiment({"model": "own_nets:Nets"}, allowed)
    with pytest.raises(ConfigError, match=REFUSED):
        node_experiment({**named, "dataset": "own_nets:read"}, allowed)
    monkeypatch.setenv(ALLOWED_CODE_VARIABLE, "own_nets:Net")
    assert node_experiment(named, {})
    # What the operator says of one node wins.
    with pytest.raises(ConfigError, match=REFUSED):
        node_experiment(named, {ALLOWED_CODE: "other:Net"})


def test_whoever_starts_nodes_for_a_run_allows_its_code() -> None:
    assert allowed_by_starter({"model": "a:B", "dataset": "digits"}) == {
        ALLOWED_CODE: "a:B"
    }
    assert allowed_by_starter({"model": "mlp"}) == {}


def test_what_the_operator_installed_is_used(tmp_path: Path) -> None:
    with example(tmp_path):
        hello = answers({"method": "anchored"}).content["hello"]
    assert str(hello["plug-ins"]).startswith("fedsuite-example 0.1.0 (")


def test_a_node_without_the_package_names_the_method() -> None:
    config: dict[str, Value] = {"method": "anchored"}
    reason = answers(config).error.reason
    assert "key method = 'anchored': " in reason
    assert "or a name that an installed package adds" in reason
    assert reason.count("\n") == 0
    strategy = FedAvg(identity="partition", num_clients=2, connect_timeout=5.0)
    with (
        flower_identity(),
        pytest.raises(RunError, match=r"failed the hello .*key method = 'anchored'"),
    ):
        strategy.start(LocalGrid(app, 1, config), to_record({}), 1)


def test_a_node_with_other_code_of_a_package(tmp_path: Path) -> None:
    strategy = FedAvg(
        identity="partition", num_clients=2, connect_timeout=5.0, plug_ins="other 1.0 (00)"
    )
    with (
        example(tmp_path),
        flower_identity(),
        pytest.raises(RunError, match=r"code of plug-ins .*example 0.1.0 .*other 1.0"),
    ):
        strategy.start(LocalGrid(app, 1, {"method": "anchored"}), to_record({}), 1)


def test_the_check_of_an_experiment_imports_nothing(trap: Path) -> None:
    Experiment.from_values({"model": "trap_module:Net", "dataset": "trap_module:read"})
    assert not trap.exists()
