"""What is imported when: the command must answer at once."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedsuite

HEAVY = ("torch", "flwr", "ray", "numpy", "scipy", "sklearn", "pyarrow", "matplotlib")

HELPS = f"""
import sys
import fedsuite

def heavy():
    return [module for module in {HEAVY!r} if module in sys.modules]

print("import", heavy())
from typer.testing import CliRunner
from fedsuite.cli import app
for words in ([], ["run"], ["analyse"]):
    print(*words, CliRunner().invoke(app, [*words, "--help"]).exit_code, heavy())
"""


def test_neither_the_package_nor_the_help_of_a_command_imports_what_is_heavy():
    result = subprocess.run(
        [sys.executable, "-c", HELPS], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["import []", "0 []", "run 0 []", "analyse 0 []"]


LATE = ("matplotlib", "scipy", "sklearn", "pyarrow", "pandas", "flwr_datasets", "ray")
LATE += ("tensorboard", "torch._dynamo", "sympy", "fedsuite.engines.flower")

TO_THE_FIRST_ROUND = f"""
import sys
import fedsuite
from fedsuite.rounds.strategy import FederatedStrategy

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

    assert FedAvg.__module__ == "fedsuite.strategies.averaging.fedavg"
    assert FedAvgClient.__module__ == "fedsuite.clients.averaging.fedavg"
    assert {"FedAvg", "FedProx"} <= set(dir(fedsuite.strategies))
    assert {"FedAvgClient", "FedProxClient"} <= set(dir(fedsuite.clients))
    with pytest.raises(AttributeError, match="FedNone"):
        fedsuite.strategies.FedNone  # noqa: B018
    with pytest.raises(AttributeError, match="FedNone"):
        fedsuite.clients.FedNone  # noqa: B018


HELLO = """
import sys
from flwr.app import Message, RecordDict
from fedsuite.running.node_app import app
from fedsuite.engines.local import LocalGrid
from fedsuite.workarounds.identity import flower_identity

for method in ("fedavg", "fedsac"):
    config = {"method": method, "dataset": "digits"}
    with flower_identity():
        grid = LocalGrid(app, 1, config)
        (reply,) = grid.send_and_receive([Message(RecordDict(), 1000, "query.hello")])
        assert "source" in reply.content["hello"], reply
        (reply,) = grid.send_and_receive([Message(RecordDict(), 1000, "train.of_another")])
        assert "No train function" in reply.error.reason, reply
    files = [m for m in sys.modules if m.startswith("fedsuite.clients.")]
    methods = {"fedakd", "fedal", "fedeba", "ditto", "fedsac"}
    print(methods & {file.rpartition(".")[2] for file in files})
"""


def test_a_client_app_loads_the_method_of_its_run_alone():
    command = [sys.executable, "-c", HELLO]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == ["set()", "{'fedsac'}"], result.stderr


MAY_IMPORT = {
    "core": "",
    "messages": "core",
    "data": "core",
    "workarounds": "core messages",
    "devices": "core",
    "models": "core messages workarounds",
    "rounds": "core messages workarounds devices",
    "training": "core messages data models workarounds",
    "method": "core messages rounds",
    "client": "core messages models training",
    "strategies": "core messages data models rounds method",
    "clients": "core messages data models training client",
    "experiment": "core messages data models rounds training strategies clients",
    "results": "core messages data rounds experiment",
    "callbacks": "core messages rounds results",
    "running": "core messages data models rounds training workarounds strategies clients "
    "experiment results callbacks",
    "engines": "core messages data models rounds training workarounds clients experiment "
    "results callbacks running devices",
    "sweeps": "core models experiment results engines",
    "deploy": "core messages data rounds workarounds experiment results engines",
    "cli": "core data models strategies experiment results engines sweeps deploy",
}
"""The rooms, from the ground up, and which others each may import.

The rule: imports point one way. A room names only rooms that stand before it, so that there
is no circle; strategies never import clients or training, nor clients strategies or rounds:
what both need lies below both. The registry names methods without importing them.
"""

DOORS = {"__init__": "engines", "__main__": "cli", "server_app": "running"}
DOORS |= {"client_app": "running"}
"""The files that stand in no room, and the room that each opens."""


def imports_of(path):
    """Yield the modules that a file imports, anywhere in it, for types too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "fedsuite":
            yield from (f"fedsuite.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def wrong_imports(room, path):
    """Yield what a file of a room may not import."""
    allowed = {room, *MAY_IMPORT.get(room, DOORS.get(room, "")).split()}
    for module in imports_of(path):
        words = module.split(".")
        if words[0] != "fedsuite" or len(words) < 2 or words[1].startswith("_"):
            continue
        if words[1] not in allowed:
            yield f"{room}: {path.name} imports {module}"


def files():
    """Yield each file of the package, and the room or door that it is."""
    home = Path(fedsuite.__file__).parent
    for path in sorted(home.rglob("*.py")):
        yield path.relative_to(home).with_suffix("").parts[0], path


def test_imports_point_one_way():
    wrong = [line for room, path in files() for line in wrong_imports(room, path)]
    assert wrong == []


def test_a_room_names_only_rooms_that_stand_before_it():
    before = []
    for room, others in MAY_IMPORT.items():
        assert set(others.split()) <= set(before), room
        before.append(room)


def test_the_page_has_every_room_above_those_that_it_imports():
    text = (Path(fedsuite.__file__).parents[1] / "CONTRIBUTING.md").read_text()
    table = text.partition("| room | what it holds |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.split("\n")[2:]]
    place = {room: number for number, row in enumerate(rows) for room in row}
    assert set(place) == set(MAY_IMPORT)
    for room, others in MAY_IMPORT.items():
        assert all(place[other] > place[room] for other in others.split()), room


def test_every_file_stands_in_a_room():
    assert {room for room, _ in files()} == {*MAY_IMPORT, *DOORS}


METHODS_ONLY = ("strategies", "clients")


@pytest.mark.parametrize("side", METHODS_ONLY)
def test_methods_stand_in_families(side):
    home = Path(fedsuite.__file__).parent / side
    assert [path.name for path in home.glob("*.py")] == ["__init__.py"]
    families = {path.name for path in home.iterdir() if (path / "__init__.py").exists()}
    assert families == {
        *("averaging", "drift", "personal", "fair"),
        *("reward", "distillation", "decomposition"),
    }


@pytest.mark.parametrize(
    ("room", "line", "wrong"),
    [
        ("strategies", "from fedsuite.clients.fair import probed", True),
        ("strategies", "from fedsuite.training.evaluation import evaluate", True),
        ("clients", "import fedsuite.strategies.averaging.fedavg", True),
        ("clients", "import fedsuite.rounds.strategy", True),
        ("clients", "def f():\n    from fedsuite import experiment", True),
        ("models", "from fedsuite.data import Split", True),
        ("messages", "from fedsuite.models import build_model", True),
        ("server_app", "from fedsuite.engines import local", True),
        ("strategies", "from fedsuite.models.arrays import load_arrays", False),
        ("clients", "if TYPE_CHECKING:\n    from fedsuite.rounds.strategy import X", True),
        ("clients", "from fedsuite import __version__", False),
    ],
)
def test_what_would_be_found(room, line, wrong, tmp_path):
    (tmp_path / "module.py").write_text(line)
    assert bool(list(wrong_imports(room, tmp_path / "module.py"))) == wrong
