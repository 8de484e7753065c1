"""Any Flower app in this process: what it is given, and what ends it in one line."""

import random
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.results.compare import compare
from fedsuite.results.layout import read_manifest
from fedsuite.results.reader import load_run
from fedsuite.results.report import write_report
from fedsuite.results.report.run_tables import commands
from fedsuite.results.verdict import verdict
from fedsuite.results.writer import RunFolder

PROJECT = """
[project]
name = "small-app"
version = "1.0.0"

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "small.server:app"
clientapp = "small.client:app"

[tool.flwr.app.config]
num-server-rounds = 2
lr = 0.5
name = "none"

[tool.flwr.app.config.model]
width = 3
"""
SERVER = """
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
import numpy as np

app = ServerApp()

@app.main()
def main(grid, context):
    arrays = ArrayRecord([np.zeros(int(context.run_config["model.width"]))])
    strategy = FedAvg(fraction_evaluate=0.5, min_available_nodes=2)
    rounds = context.run_config["num-server-rounds"]
    result = strategy.start(grid, arrays, num_rounds=rounds)
    print("MODEL", result.arrays.to_numpy_ndarrays()[0].tobytes().hex())
    print("CONFIG", context.run_config["lr"], context.run_config["name"])
"""
CLIENT = """
import random
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    [array] = message.content["arrays"].to_numpy_ndarrays()
    noise = random.random() + np.random.rand() + float(torch.rand(1))
    count = context.state.get("count", MetricRecord({"n": 0}))
    context.state["count"] = MetricRecord({"n": count["n"] + 1})
    metrics = MetricRecord({"num-examples": 1, "noise": noise, "calls": count["n"]})
    content = {"arrays": ArrayRecord([array + noise]), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"num-examples": 1, "eval_acc": 0.5, "node": context.node_id})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A small app that seeds nothing and draws from each global stream."""
    return write_app(tmp_path / "app")


def write_app(folder: Path, **files: str) -> Path:
    (folder / "small").mkdir(parents=True)
    contents = {"server": SERVER, "client": CLIENT, "__init__": "", **files}
    for name, text in contents.items():
        if name != "pyproject":
            (folder / "small" / f"{name}.py").write_text(textwrap.dedent(text))
    (folder / "pyproject.toml").write_text(files.get("pyproject", PROJECT))
    return folder


@pytest.fixture
def simulated(capsys):
    """Runs an app here and returns what it prints."""

    def run(app: Path, **options: object) -> str:
        capsys.readouterr()
        fedsuite.simulate(app, **options)
        return capsys.readouterr().out

    return run


def command(*words: str | Path, code: int = 0) -> str:
    """Run ``fedsuite simulate`` and return what it prints, errors too."""
    done = subprocess.run(
        [sys.executable, "-m", "fedsuite", "simulate", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def printed(output: str, word: str) -> str:
    [line] = [line for line in output.splitlines() if line.startswith(word)]
    return line


def test_a_seed_gives_the_same_bits_with_any_number_of_workers(app, simulated):
    models = [
        printed(simulated(app, seed=3, workers=workers, num_supernodes=5), "MODEL")
        for workers in (1, 1, 2)
    ]
    assert len(set(models)) == 1
    assert printed(simulated(app, seed=4, num_supernodes=5), "MODEL") != models[0]


def test_without_a_seed_the_app_draws_as_it_likes(app, simulated):
    models = [printed(simulated(app, num_supernodes=2), "MODEL") for _ in range(2)]
    assert models[0] != models[1]


def test_run_config_is_read_as_flower_reads_it(app, simulated, tmp_path):
    output = simulated(app, run_config="lr=0.25 name='a b' model.width=2")
    assert printed(output, "CONFIG") == "CONFIG 0.25 a b"
    overrides = tmp_path / "overrides.toml"
    overrides.write_text("lr = 0.125\n[model]\nwidth = 5\n")
    output = simulated(app, run_config=overrides)
    assert printed(output, "CONFIG") == "CONFIG 0.125 none"
    assert len(printed(output, "MODEL")) == len("MODEL ") + 5 * 16


@pytest.mark.parametrize(
    ("run_config", "message"),
    [
        ("learning=1", r"--run-config: the app has no learning: .*declares what it has"),
        ("lrr=1", r"the app has no lrr: did you mean lr\?"),
        ("lr=a=b", "--run-config: "),
        ("nonsense", "--run-config: 'nonsense' names no value"),
        ({"lr": [1]}, "--run-config: The value for key lr"),
        ("missing.toml", "--run-config: .*No such file"),
    ],
)
def test_a_wrong_run_config_is_one_line(app, run_config, message):
    with pytest.raises(ConfigError, match=message) as error:
        fedsuite.simulate(app, run_config=run_config)
    assert "\n" not in str(error.value)


WRONG = {
    "no project": (
        {"pyproject": ""},
        r"pyproject.toml has no \[tool.flwr.app.components\]",
    ),
    "no TOML": ({"pyproject": "a = = 1"}, r"cannot read .*pyproject.toml"),
    "no client": (
        {"pyproject": PROJECT.replace("clientapp =", "other =")},
        'names no clientapp: write clientapp = "package.module:app"',
    ),
    "no module": (
        {"pyproject": PROJECT.replace("small.client", "small.missing")},
        "small.missing:app: there is no module small.missing in",
    ),
    "no attribute": (
        {"pyproject": PROJECT.replace("small.client:app", "small.client:apps")},
        "small.client:apps: the module has no 'apps': name the ClientApp",
    ),
    "another type": ({"client": "app = 3"}, "small.client:app is no ClientApp, but a int"),
    "a missing package": (
        {"client": "import no_such_package"},
        "small.client:app needs no_such_package, which is not installed here",
    ),
    "a module of its own that is missing": (
        {"client": "x = 1\nimport small.helper"},
        r"cannot be imported: small/client.py, line 2: there is no module small.helper in",
    ),
    "another version of a package": (
        {"client": "from flwr.client.gone import Client"},
        r"the flwr that is installed here \(1\..*\) has no flwr.client.gone:",
    ),
    "an error": (
        {"client": "x = 1\ny = x / 0"},
        r"small.client:app cannot be imported: small/client.py, line 2: ZeroDivisionError",
    ),
    "a syntax error": ({"client": "def"}, "small.client:app cannot be imported: "),
    "a module that ends the process": (
        {"client": "import sys\nsys.exit(2)"},
        r"cannot be imported: small/client.py, line 2: SystemExit: 2",
    ),
    "an attribute error": (
        {"client": "import random\nrandom.nothing"},
        r"cannot be imported: small/client.py, line 2: AttributeError",
    ),
}


@pytest.mark.parametrize(("files", "message"), WRONG.values(), ids=WRONG)
def test_an_app_that_cannot_be_loaded_is_one_line(tmp_path, files, message, simulated):
    app = write_app(tmp_path / "app", **files)
    with pytest.raises((ConfigError, RunError), match=message) as error:
        simulated(app)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_none_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no .*give the folder of a Flower app"):
        fedsuite.simulate(tmp_path / "missing")
    (tmp_path / "file.fab").write_text("no bundle")
    with pytest.raises(ConfigError, match=r"is no folder and no bundle \(.fab\)"):
        fedsuite.simulate(tmp_path / "file.fab")
    with pytest.raises(ConfigError, match="workers = 0: at least 1"):
        fedsuite.simulate(tmp_path, workers=0)


def test_a_worker_that_cannot_import_the_app_says_so(tmp_path, simulated):
    client = "import sys\nif 'pytest' not in sys.modules:\n    import no_such_package\n"
    app = write_app(tmp_path / "app", client=client + CLIENT)
    with pytest.raises(RunError, match=r"small.client:app needs no_such_package"):
        simulated(app, workers=2)


DYING = """def train(message, context):
    import os
    if context.node_config["partition-id"] == 2:
        os._exit(3)
"""


def test_a_worker_that_dies_says_so(tmp_path, simulated):
    client = CLIENT.replace("def train(message, context):", DYING)
    app = write_app(tmp_path / "app", client=client)
    with pytest.raises(RunError, match=r"worker process 1 ended \(exit 3\): .*fewer"):
        simulated(app, workers=2)


def test_a_bundle_runs(app, tmp_path, simulated):
    bundle = tmp_path / "small.fab"
    with zipfile.ZipFile(bundle, "w") as file:
        for path in app.rglob("*.*"):
            file.write(path, path.relative_to(app))
    assert "MODEL" in simulated(bundle, num_supernodes=2)


# ----------------------------------------------------------------- components of a notebook


def apps(client: ClientApp, *message_types: str, content=None, timeout=None):
    """Return a ServerApp that sends such messages to all nodes, and what came back."""
    server, replies = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for kind in message_types:
            messages = [
                Message(content or RecordDict(), k, kind) for k in grid.get_node_ids()
            ]
            replies.append(grid.send_and_receive(messages, timeout=timeout))

    return (server, client), replies


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


def test_components_that_were_just_defined_run():
    client = ClientApp()
    client.train()(echo)
    client.query("who")(echo)
    both, replies = apps(client, "train", "query.who", "evaluate")
    fedsuite.simulate(both, num_supernodes=3, run_config={"a": 1})
    assert [len(one) for one in replies] == [3, 3, 3]
    assert all(reply.has_content() for one in replies[:2] for reply in one)
    # No function answers evaluation: Flower's error, with Flower's code.
    assert [reply.error.code for reply in replies[2]] == [2, 2, 2]
    assert "No evaluate function registered" in replies[2][0].error.reason
    with pytest.raises(ConfigError, match="workers need an app that other processes can"):
        fedsuite.simulate(both, workers=2)


def test_nodes_do_not_see_each_others_changes():
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        message.content["config"]["shared"] += 1
        message.content["config"]["list"].append(1)
        message.content["more"] = MetricRecord({"x": 1})
        context.run_config["lr"] += 1
        context.state.setdefault("seen", ConfigRecord({"n": 0}))["n"] += 1
        state = context.state["seen"]["n"]
        metrics = MetricRecord({"state": state, "lr": context.run_config["lr"]})
        reply = {"config": message.content["config"], "metrics": metrics}
        return Message(RecordDict(reply), reply_to=message)

    content = RecordDict({"config": ConfigRecord({"shared": 0, "list": [0]})})
    both, replies = apps(client, "train", "train", content=content)
    fedsuite.simulate(both, num_supernodes=3, run_config={"lr": 1})
    assert dict(content["config"]) == {"shared": 0, "list": [0]} and len(content) == 1
    assert [reply.content["config"]["shared"] for reply in replies[0]] == [1, 1, 1]
    numbers = [[dict(r.content["metrics"]) for r in one] for one in replies]
    # What Flower keeps per node and between messages: the whole context.
    assert numbers == [[{"state": 1, "lr": 2}] * 3, [{"state": 2, "lr": 3}] * 3]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_node_that_exits_does_not_end_the_run(workers, tmp_path, simulated):
    """Else ``sys.exit(0)`` of a client is a run that ended well, and did nothing."""
    leaving = """def train(message, context):
    if context.node_config["partition-id"] == 1:
        raise SystemExit(0)
"""
    client = CLIENT.replace("def train(message, context):\n", leaving)
    app = write_app(tmp_path / "app", client=client)
    assert "MODEL" in simulated(app, workers=workers, num_supernodes=3)


def test_the_state_of_a_node_whose_code_failed_is_that_from_before(caplog):
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        count = context.state.setdefault("seen", ConfigRecord({"n": 0}))
        count["n"] += 1
        if context.node_config["partition-id"] == 1 and count["n"] == 2:
            raise ValueError("no data\nhere")
        metrics = MetricRecord({"n": count["n"]})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    both, replies = apps(client, "train", "train", "train")
    fedsuite.simulate(both, num_supernodes=2)
    assert [one[0].content["metrics"]["n"] for one in replies] == [1, 2, 3]
    assert [one[1].has_error() for one in replies] == [False, True, True]
    assert "ValueError" in replies[1][1].error.reason
    lines = [r.getMessage() for r in caplog.records if "node 1 failed" in r.getMessage()]
    assert len(lines) == 2 and all("\n" not in line for line in lines)
    assert [bool(r.exc_info) for r in caplog.records if "node 1" in r.getMessage()] == [
        1,
        0,
    ]


def test_an_unknown_node_and_a_slow_one():
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 0:
            time.sleep(0.05)
        return echo(message, context)

    both, replies = apps(client, "train", timeout=0.04)
    fedsuite.simulate(both, num_supernodes=3)
    assert len(replies[0]) == 2, "a time-out is each node's own"
    server, unknown = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        unknown.extend(grid.send_and_receive([Message(RecordDict(), 7, "train")]))

    fedsuite.simulate((server, client), num_supernodes=1)
    assert unknown[0].error.reason == "no such node"


def test_messages_can_be_pushed_and_pulled():
    client, server, pulled = ClientApp(), ServerApp(), []
    client.train()(echo)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        content = RecordDict()
        nodes = grid.get_node_ids()
        made = [grid.create_message(content, "train", k, "1") for k in nodes]
        ids = list(grid.push_messages(made))
        pulled.append(list(grid.pull_messages(ids[:1])))
        pulled.append(list(grid.pull_messages(message_ids=ids)))
        pulled.append(list(grid.pull_messages(ids)))
        assert grid.run.run_id == context.run_id

    fedsuite.simulate((server, client), num_supernodes=3)
    assert [len(one) for one in pulled] == [1, 2, 0]


def test_global_streams_are_as_before(app, simulated):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    simulated(app, seed=1, num_supernodes=2)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])


def test_a_module_that_seeds_itself_is_obeyed_and_nodes_disturb_no_server(
    tmp_path, simulated
):
    """As in Flower, whose server and clients draw in processes of their own."""
    client = CLIENT.replace("app = ClientApp()", "app = ClientApp()\nrandom.seed(7)")
    client = client.replace(
        "    noise =", "    np.random.seed(0)\n    torch.manual_seed(0)\n    noise ="
    )
    server = SERVER.replace("    arrays =", "    np.random.seed(3)\n    arrays =")
    server = server.replace(
        '    print("MODEL"', '    print("DRAWN", np.random.rand())\n    print("MODEL"'
    )
    app = write_app(tmp_path / "app", client=client, server=server)
    outputs = [simulated(app, num_supernodes=2) for _ in range(2)]
    assert len({printed(output, "MODEL") for output in outputs}) == 1
    expected = np.random.RandomState(3).rand()
    assert printed(outputs[0], "DRAWN") == f"DRAWN {expected}"


def test_an_edited_app_and_another_of_the_same_names_run_as_they_are(
    app, tmp_path, simulated, monkeypatch
):
    monkeypatch.setitem(sys.modules, "small", sys)
    before = list(sys.path), set(sys.modules)
    first = printed(simulated(app, seed=1, num_supernodes=2), "MODEL")
    (app / "small" / "server.py").write_text(SERVER.replace("MODEL", "EDITED"))
    assert printed(simulated(app, seed=1, num_supernodes=2), "EDITED").split()[1] in first
    other = write_app(tmp_path / "other", server=SERVER.replace("MODEL", "OTHER"))
    assert printed(simulated(other, seed=1, num_supernodes=2), "OTHER").split()[1] in first
    assert sys.path == before[0] and sys.modules["small"] is sys
    assert not {name for name in set(sys.modules) - before[1] if name.startswith("small")}


def test_faults_are_planned_by_the_seed():
    client = ClientApp()
    client.train()(echo)
    client.evaluate()(echo)
    both, replies = apps(client, *["train"] * 20, "evaluate")
    fedsuite.simulate(both, num_supernodes=10, seed=1, drop_out=0.3, straggler=0.2)
    reasons = [r.error.reason if r.has_error() else "" for one in replies[:20] for r in one]
    # All messages are of round 0, so each node has one fate.
    assert len({tuple(reasons[k : k + 10]) for k in range(0, 200, 10)}) == 1
    assert {"", "planned drop-out"} <= set(reasons)
    assert not any(reply.has_error() for reply in replies[20])


def test_a_report_reads_as_any_run(app, tmp_path, simulated):
    for name, config in (("a", "lr=0.5"), ("b", "lr=0.25")):
        options = {"run_config": config, "seed": 0, "drop_out": 0.5, "num_supernodes": 4}
        simulated(app, report=tmp_path / name, **options)
    run = load_run(tmp_path / "a")
    assert run.manifest["status"] == "finished" and run.last_round == 2
    rows = run.clients()
    assert {row["phase"] for row in rows} == {"train", "evaluate"}
    evaluated = [row for row in rows if row["phase"] == "evaluate"]
    assert len(evaluated) == 4 and all(row["accuracy"] == 0.5 for row in evaluated)
    trained = [row for row in rows if row["phase"] == "train"]
    assert all(row["update_norm"] > 0 and row["seconds"] > 0 for row in trained)
    dropped = [event for event in run.events() if event["reason"] == "planned drop-out"]
    assert len(dropped) + len(trained) == 8 and dropped
    first = run.rounds[0]
    assert first["bytes_down_train"] == 4 * 24 and first["accuracy_mean"] == 0.5
    comparison = compare([tmp_path / "a", tmp_path / "b"], 1, "accuracy", None)
    assert len(comparison.groups) == 2


def test_a_report_says_nothing_of_a_data_set_and_repeats_itself_by_simulate(
    app, tmp_path, simulated
):
    folder = tmp_path / "a"
    options = {"seed": 0, "drop_out": 0.5, "num_supernodes": 4}
    simulated(app, report=folder, run_config="lr=0.5", **options)
    run = load_run(folder)
    assert "None" not in repr(run) and f"{app.name}, 4 clients, round 2, " in repr(run)
    [command] = commands(run).values()
    words = shlex.split(command)
    assert words[:3] == ["fedsuite", "simulate", "APP"]
    told = dict(zip(words[3::2], words[4::2], strict=True))
    assert 'lr=0.5 name="none"' in told.pop("--run-config")
    assert told == {"--num-supernodes": "4", "--seed": "0", "--drop-out": "0.5"}
    write_report([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"<title>{app.name} – " in page and " of ?" not in page
    answer = verdict(compare([folder], 1, "accuracy", None))
    assert answer.headline.startswith(f"{app.name}, 4 clients: mean accuracy ")
    with pytest.raises(RunError, match="the report of a Flower app, which has no check"):
        fedsuite.resume(folder)


def test_rows_of_a_report_are_in_the_order_of_the_nodes(tmp_path):
    """In whatever order the server asks, or replies come."""
    client, server = ClientApp(), ServerApp()
    client.train()(echo)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        asked = {"config": ConfigRecord({"server-round": 1})}
        asked["metrics"] = MetricRecord({"loss": 1.0})
        nodes = reversed(list(grid.get_node_ids()))
        grid.send_and_receive([Message(RecordDict(asked), k, "train") for k in nodes])

    fedsuite.simulate((server, client), num_supernodes=3, report=tmp_path / "run")
    rows = load_run(tmp_path / "run").clients()
    assert [row["client"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize("waits", [True, False])
def test_an_app_that_waits_for_more_nodes_hears_that_none_come(waits, monkeypatch, caplog):
    """As Flower's strategies do, for ever, below their ``min_available_nodes``."""
    monkeypatch.setattr("fedsuite.engines.apps.grid._PATIENCE", 0.0)
    client, server = ClientApp(), ServerApp()
    client.train()(echo)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for _ in range(6):
            nodes = grid.get_node_ids()
            if not waits:
                grid.send_and_receive([Message(RecordDict(), nodes[0], "train")])

    fedsuite.simulate((server, client), num_supernodes=2)
    told = [r for r in caplog.messages if r.startswith("this simulation has 2 nodes, and")]
    assert len(told) == waits


def test_a_server_that_fails_ends_with_one_line(tmp_path):
    server = SERVER.replace(
        'print("MODEL"', 'raise ValueError("no\\nway")\n    print("MODEL"'
    )
    folder = tmp_path / "run"
    output = command(write_app(tmp_path / "app", server=server), "--report", folder, code=1)
    assert output.splitlines()[-1].startswith(
        "fedsuite: error: the ServerApp failed: ValueError: no way (small/server.py, line "
    )
    assert "Traceback" in output
    run = load_run(folder)
    assert run.manifest["status"] == "failed" and "ValueError" in run.manifest["error"]
    assert run.last_round == 2


def test_a_report_that_cannot_be_flushed_says_that_it_failed(tmp_path, monkeypatch):
    client, server = ClientApp(), ServerApp()
    client.train()(echo)
    server.main()(lambda grid, context: None)

    def no_space(folder: RunFolder) -> None:
        raise RunError("no space left")

    monkeypatch.setattr(RunFolder, "sync", no_space)
    with pytest.raises(RunError, match="no space left"):
        fedsuite.simulate((server, client), num_supernodes=2, report=tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    assert (manifest["status"], manifest["error"]) == ("failed", "no space left")


def test_a_failure_inside_of_a_library_names_the_apps_own_line(tmp_path):
    """The innermost line is of a file that the app's author never saw."""
    server = SERVER.replace(
        'print("MODEL"', 'import json\n    json.loads("{")\n    print("MODEL"'
    )
    output = command(write_app(tmp_path / "app", server=server), code=1)
    last = output.splitlines()[-1]
    assert "JSONDecodeError" in last and "server.py, line " in last
    assert "decoder.py" not in last


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_ctrl_c_leaves_nothing_behind(tmp_path, workers):
    slow = CLIENT.replace("def train(message, context):", SLOW)
    app = write_app(tmp_path / "app", client=slow)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsuite", "simulate", app, "--workers", workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("training"):
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(30) == 130
    assert rest.splitlines()[-1] == (
        "fedsuite: the simulation was stopped; no process of it is left"
    )


SLOW = """def train(message, context):
    import time
    print("training", flush=True)
    time.sleep(60)
"""

LACKING = """
import sys
for name in ("fcntl", "resource", "termios", "pwd", "grp", "ray"):
    sys.modules[name] = None
import os, select, signal
for owner, names in ((os, ("fork", "sched_getaffinity", "memfd_create")),
                     (select, ("poll",)), (signal, ("SIGHUP",))):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
sys.argv = ["fedsuite", "simulate", *sys.argv[1:]]
from fedsuite.cli import main
main()
"""


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_no_module_is_needed_that_other_systems_lack(app, workers):
    program = [sys.executable, "-c", LACKING, str(app), "--workers", workers]
    options = ["--seed", "1", "--num-supernodes", "4"]
    done = subprocess.run([*program, *options], capture_output=True, text=True, check=False)
    assert "MODEL" in done.stdout, done.stderr[-2000:]


# ------------------------------------------------------------------------- legacy apps


def test_legacy_servers_sum_in_one_order():
    from flwr.client import NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg as LegacyFedAvg

    finals = []

    class Client(NumPyClient):
        def fit(self, parameters, config):
            scale = 10.0 ** random.randint(-12, 12)
            return [parameters[0] + np.random.rand(3) * scale], 1, {}

        def evaluate(self, parameters, config):
            return 0.0, 1, {}

    def remember(server_round, parameters, config):
        finals.append(parameters[0].tobytes())
        return 0.0, {}

    def server_fn(context):
        strategy = LegacyFedAvg(
            initial_parameters=ndarrays_to_parameters([np.zeros(3)]), evaluate_fn=remember
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=3))

    both = (
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=lambda _: Client().to_client()),
    )
    for _ in range(3):
        fedsuite.simulate(both, num_supernodes=10, seed=5)
    assert len(finals) == 12 and finals[:4] == finals[4:8] == finals[8:]


def test_a_strategy_of_fedsuite_runs_in_it():
    from fedsuite.strategies import FedEBA

    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        [array] = message.content["arrays"].to_numpy_ndarrays()
        loss = 1.0 + context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": 1, "train_loss": loss})
        content = {"arrays": ArrayRecord([array + loss]), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    models = []
    for strategy in (FedAvg, FedEBA):
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context, strategy=strategy) -> None:
            result = strategy(fraction_evaluate=0.0).start(
                grid, ArrayRecord([np.zeros(2)]), num_rounds=2
            )
            models.append(result.arrays.to_numpy_ndarrays()[0])

        fedsuite.simulate((server, client), num_supernodes=4)
    assert models[0] == pytest.approx([5.0, 5.0])
    assert models[1][0] > 5.1, "the worse off weigh more"
