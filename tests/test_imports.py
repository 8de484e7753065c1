"""What is imported when: the command must answer at once."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "flwr", "ray", "numpy", "scipy", "sklearn", "pyarrow", "matplotlib")

PROGRAMS = {
    "import": "import fedsuite",
    "help": "from typer.testing import CliRunner; from fedsuite.cli import app\n"
    "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
    "command's help": "from typer.testing import CliRunner; from fedsuite.cli import app\n"
    "assert CliRunner().invoke(app, ['run', '--help']).exit_code == 0",
    "analyses": "from typer.testing import CliRunner; from fedsuite.cli import app\n"
    "assert CliRunner().invoke(app, ['analyse', '--help']).exit_code == 0",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_heavy_is_imported(program):
    check = f"\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program + check], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


LATE = ("matplotlib", "scipy", "sklearn", "pyarrow", "pandas", "flwr_datasets", "ray")
LATE += ("tensorboard", "torch._dynamo", "sympy", "fedsuite.engines.flower")

TO_THE_FIRST_ROUND = f"""
import sys
import fedsuite
from fedsuite.strategies.base import FederatedStrategy

def begin(*args):
    sys.exit(str([module for module in {LATE!r} if module in sys.modules]))

FederatedStrategy.configure_train = begin
fedsuite.run({{"output-dir": sys.argv[1]}})
"""


def test_a_run_begins_without_what_it_needs_later(tmp_path):
    command = [sys.executable, "-c", TO_THE_FIRST_ROUND, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stderr.strip() == "[]"


def test_strategies_and_clients_come_when_asked_for():
    import fedsuite.clients
    import fedsuite.strategies
    from fedsuite.clients import FedAvgClient
    from fedsuite.strategies import FedAvg

    assert FedAvg.__module__ == "fedsuite.strategies.fedavg"
    assert FedAvgClient.__module__ == "fedsuite.clients.fedavg"
    assert {"FedAvg", "FedProx"} <= set(dir(fedsuite.strategies))
    assert {"FedAvgClient", "FedProxClient"} <= set(dir(fedsuite.clients))
    with pytest.raises(AttributeError, match="FedNone"):
        fedsuite.strategies.FedNone  # noqa: B018
    with pytest.raises(AttributeError, match="FedNone"):
        fedsuite.clients.FedNone  # noqa: B018


HELLO = """
import sys
from flwr.app import Message, RecordDict
from fedsuite.client_app import app
from fedsuite.engines.local import LocalGrid, flower_identity

config = {"method": sys.argv[1], "dataset": "digits"}
with flower_identity():
    grid = LocalGrid(app, 1, config)
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1000, "query.hello")])
    assert "source" in reply.content["hello"], reply
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1000, "train.of_another")])
    assert "No train function" in reply.error.reason, reply
methods = ("fedakd", "fedal", "fedeba", "ditto", "fedsac")
print([name for name in methods if f"fedsuite.clients.{name}" in sys.modules])
"""


@pytest.mark.parametrize(("method", "loaded"), [("fedavg", []), ("fedsac", ["fedsac"])])
def test_a_client_app_loads_the_method_of_its_run_alone(method, loaded):
    command = [sys.executable, "-c", HELLO, method]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == str(loaded), result.stderr
