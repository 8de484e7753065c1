"""``fedsuite init``: each method's experiment means what it says, and each app runs."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from flwr.app import Context, RecordDict

from fedsuite import __version__
from fedsuite.cli import main
from fedsuite.cli.starter_files import (
    app_methods,
    app_texts,
    experiment_text,
    write_experiment,
)
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.registry import METHODS
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment import shipped
from fedsuite.experiment.experiment import Experiment, read_file
from fedsuite.experiment.own_defaults import LOCAL_WORK, OPTIMISER
from fedsuite.strategies import load_strategy
from fedsuite.workarounds.identity import flower_identity

ROOT = Path(__file__).parents[2]
QUICKSTART = read_file(ROOT / "simulations" / "quickstart.toml")


def values(given):
    """Return an experiment's values, less the idle one of epochs and steps."""
    found = dict(Experiment.from_values(given).values)
    found.pop("local-epochs" if found["local-steps"] else "local-steps")
    return found


@pytest.mark.parametrize("method", METHODS)
def test_each_method_begins_with_the_work_that_it_was_made_for(method):
    text = experiment_text(method)
    given = tomllib.loads(text)
    strategy = load_strategy(METHODS[method])
    expected = QUICKSTART | {"method": method}
    if strategy.DEFAULTS:
        work = (*LOCAL_WORK, *OPTIMISER, *strategy.DEFAULTS)
        expected = {k: v for k, v in expected.items() if k not in work}
    assert values(given) == values(expected)
    assert {key.name for key in strategy.method_keys()} <= set(given)
    for key in strategy.method_keys():
        assert key.help.split()[0] in text
    assert max(map(len, text.splitlines())) <= 92


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder; return exit code and both outputs."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedsuite", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return caught.value.code or 0, printed.out, printed.err

    return run


def test_an_experiment_is_written_once_and_runs(command):
    assert command("init", "fedprox")[:2] == (
        0,
        "fedprox.toml\nrun it: fedsuite run fedprox.toml\n",
    )
    before = Path("fedprox.toml").read_text()
    code, _, err = command("init", "fedprox")
    assert (code, "fedprox.toml exists already" in err) == (1, True)
    assert Path("fedprox.toml").read_text() == before
    quick = ("--set", "num-rounds=1", "--set", "report=false")
    assert command("run", "fedprox.toml", *quick)[0] == 0
    assert command("init")[0] == 0
    assert (
        Experiment.load(Path("fedavg.toml")).values
        == Experiment(QUICKSTART).replace().values
    )
    code, _, err = command("init", "fedpox")
    assert (code, "did you mean 'fedprox'?" in err) == (1, True)


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        write_experiment("fedavg", tmp_path / "none" / "such")


def test_an_app_is_written_whole_or_not_at_all(command):
    Path("server_app.py").write_text("mine")
    code, _, err = command("init", "--app")
    assert (code, "server_app.py exists already" in err) == (1, True)
    assert [path.name for path in Path().iterdir()] == ["server_app.py"]
    code, _, err = command("init", "scaffold", "--app")
    assert (code, "method scaffold needs a client of fedsuite's" in err) == (1, True)


@pytest.mark.parametrize("method", app_methods())
def test_each_app_runs(method, tmp_path, monkeypatch, capsys):
    for name, text in app_texts(method).items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"] | {"num-server-rounds": 2}
    assert load_strategy(METHODS[method]).__name__ in project["project"]["description"]
    client = __import__("client_app")
    monkeypatch.delitem(sys.modules, "client_app")
    monkeypatch.setitem(sys.modules, "client_app", client)
    server = ModuleType("server_app")
    exec(compile((tmp_path / "server_app.py").read_text(), "s", "exec"), server.__dict__)
    with flower_identity():
        grid = LocalGrid(client.app, 5, config)
        server.app(grid, Context(1, 1, {}, RecordDict(), config))
    assert "round 2: accuracy 0." in capsys.readouterr().out


def test_apps_are_those_whose_clients_they_have():
    content = {
        name
        for name, method in METHODS.items()
        if not load_strategy(method).NEEDS_OF_CLIENT.client
    }
    # These give clients models of their own; FedPara needs a model with its factors.
    others = {"cgsv", "fedbuff", "heterofl", "fedpara"}
    assert set(app_methods()) == content - others
    with pytest.raises(ConfigError, match=f"--app has {', '.join(app_methods())}"):
        app_texts("fedprox")


def test_version(command):
    assert command("--version") == (0, f"fedsuite {__version__}\n", "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


@pytest.mark.slow
def test_completion_of_a_shell():
    def ask(*arguments, **variables):
        return subprocess.run(
            [Path(sys.executable).with_name("fedsuite"), *arguments],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
        ).stdout

    # Else typer asks which shell this is started from.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "complete -o default -F" in ask("--show-completion", "bash", **named)
    words = {"COMP_WORDS": "fedsuite dep", "COMP_CWORD": "1"}
    assert ask(**words, _FEDSUITE_COMPLETE="complete_bash").split() == ["deploy"]


def test_experiments_that_come_with_fedsuite(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name = Path("simulations/fedal/quickstart.toml")
    assert read_file(name)["method"] == "fedal"
    with pytest.raises(ConfigError, match="cannot read experiment simulations/fedall"):
        read_file(Path("simulations/fedall/quickstart.toml"))
    with pytest.raises(ConfigError, match="cannot read"):
        read_file(Path("other/quickstart.toml"))
    # A folder of one's own counts, with all that it lacks.
    Path("simulations").mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        read_file(name)


def test_they_are_found_in_a_wheel_and_beside_the_package(monkeypatch, tmp_path):
    package = tmp_path / "fedsuite"
    package.mkdir()
    monkeypatch.setattr("fedsuite.__file__", str(package / "__init__.py"))
    assert shipped.simulations() == tmp_path / "simulations"
    (package / "simulations").mkdir()
    assert shipped.simulations() == package / "simulations"
