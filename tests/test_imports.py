"""What is imported when: the command must answer at once."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedsuite

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


LAYERS = (
    {
        *("errors", "keys", "files", "logs", "rng", "metrics", "vectors", "least_recent"),
        *("records", "packed", "wire", "quantisation", "distillation", "public_batches"),
        *("decomposition", "checkpoint", "torchvision_import", "registry", "output"),
    },
    {"models", "data"},
    {"strategies", "clients"},
)
"""What stands below what, by the first name under fedsuite; all others stand above.

The rule: imports point one way. Nothing imports what stands above it; strategies never
import clients, nor clients strategies: what both need lies below both. The registry names
methods without importing them.
"""

BLIND = {("strategies", "clients"), ("clients", "strategies"), ("models", "data")} | {
    ("data", "models")
}
"""Pairs on one layer of which the first does not import the second."""


def imports_of(path):
    """Yield the modules that a file imports, anywhere in it, but for types alone."""
    waiting = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "fedsuite":
            yield from (f"fedsuite.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def place(name):
    """Return a part's layer, counted from below."""
    return next((k for k, names in enumerate(LAYERS) if name in names), len(LAYERS))


def wrong_imports(part, path):
    """Yield what a file of a part may not import."""
    for module in imports_of(path):
        words = module.split(".")
        if words[0] != "fedsuite" or len(words) < 2 or words[1].startswith("_"):
            continue
        if place(words[1]) > place(part) or (part, words[1]) in BLIND:
            yield f"{path.name} imports {module}"


def parts():
    """Yield each file of the package that is not above all, and the part it belongs to."""
    home = Path(fedsuite.__file__).parent
    for path in sorted(home.rglob("*.py")):
        part = path.relative_to(home).with_suffix("").parts[0]
        if place(part) < len(LAYERS):
            yield part, path


def test_imports_point_one_way():
    wrong = [line for part, path in parts() for line in wrong_imports(part, path)]
    assert wrong == []


def test_each_part_of_a_layer_is_there():
    assert {part for part, _ in parts()} == set().union(*LAYERS)


@pytest.mark.parametrize(
    ("part", "line", "wrong"),
    [
        ("strategies", "from fedsuite.clients.evaluation import evaluation_mode", True),
        ("clients", "import fedsuite.strategies.base", True),
        ("clients", "def f():\n    from fedsuite import experiment", True),
        ("models", "from fedsuite.data import Split", True),
        ("records", "from fedsuite.models import build_model", True),
        ("strategies", "from fedsuite.models.arrays import load_arrays", False),
        ("clients", "if TYPE_CHECKING:\n    from fedsuite.strategies.base import X", False),
        ("clients", "from fedsuite import __version__", False),
    ],
)
def test_what_would_be_found(part, line, wrong, tmp_path):
    (tmp_path / "module.py").write_text(line)
    assert bool(list(wrong_imports(part, tmp_path / "module.py"))) == wrong
