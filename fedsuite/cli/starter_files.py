"""Files to begin with: an experiment, or a Flower app (``fedsuite init``)."""

import textwrap
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.files import atomic_write
from fedsuite.core.keys import Key, Value, toml_text
from fedsuite.core.registry import METHODS, Method, find_method
from fedsuite.experiment.experiment import Experiment, read_file
from fedsuite.experiment.key_catalog import shared_groups, shared_keys
from fedsuite.experiment.own_defaults import LOCAL_WORK, OPTIMISER
from fedsuite.experiment.shipped import simulations
from fedsuite.strategies import load_strategy

WIDTH = 92

_APP_SAYS = {
    "loss_key": '"train_loss"',
    "loss_before_key": '"loss_before"',
    "learning_rate": 'float(context.run_config["learning-rate"])',
}
"""Value of each keyword of strategies that the app's client can serve."""

_APP_REPORTS = ("num-steps",)
"""Metrics that the app's client reports by fedsuite's names."""

_APP_STRATEGY = "PracFedEBAPlus"
"""Strategy of the example app, which others replace."""

ABOUT_DEPENDENCIES = (
    "it lists no dependencies: what is listed, Flower installs anew for each run, unless "
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 is set when its local SuperLink starts"
)
"""What the first try of an app with dependencies would run into."""

_SERVER = '''"""The app's server: the rounds of {strategy}, which is fedsuite's."""

import torch
from client_app import Net
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedsuite.strategies import {strategy}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and say how well the last model does."""
    torch.manual_seed(0)
    initial_arrays = ArrayRecord(Net().state_dict())
    strategy = {strategy}({keywords})
    num_rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid, initial_arrays, num_rounds=num_rounds)
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {{server_round}}: accuracy {{metrics['eval_acc']:.3f}}")
'''


def write_experiment(method: str, folder: Path) -> Path:
    """Write an experiment with a method into a folder and return its file.

    Raises
    ------
    ConfigError
        If there is no such method.
    RunError
        If the file exists, or cannot be written.
    """
    return _write(folder, {f"{method}.toml": experiment_text(method)})[0]


def experiment_text(method: str) -> str:
    """Return an experiment with a method on digits; comments explain the method's keys."""
    strategy = load_strategy(find_method(method))
    file_values = read_file(simulations() / "quickstart.toml") | {"method": method}
    if strategy.DEFAULTS:
        # The method's own workload, instead of FedAvg's.
        file_values = {
            k: v
            for k, v in file_values.items()
            if k not in (*LOCAL_WORK, *OPTIMISER, *strategy.DEFAULTS)
        }
    values = Experiment.from_values(file_values).values
    idle = "local-epochs" if values["local-steps"] else "local-steps"
    work = [name for name in (*LOCAL_WORK, *OPTIMISER) if name != idle]
    changed = [name for name in strategy.DEFAULTS if name not in (*work, idle)]
    own = {key.name for key in strategy.method_keys()}
    first = [name for name in file_values if name not in (*work, idle, *own)]
    shared = shared_keys()
    parts = [
        f"# {method} on scikit-learn's handwritten digits. Run it:\n",
        f"#   fedsuite run {method}.toml\n",
        f"# All keys that it may hold: fedsuite methods {method} --all\n",
        *(_line(name, values[name]) for name in first),
        "\n# What a client does in a round.\n",
        *(_line(name, values[name]) for name in work),
    ]
    if changed:
        parts.append(f"\n# Keys of every method, with defaults of {method}.\n")
        parts += _explained([shared[name] for name in changed], values)
    if strategy.method_keys():
        parts.append(f"\n# Keys of {method}, at their defaults.\n")
        parts += _explained(strategy.method_keys(), values)
    return "".join(parts)


def write_app(method: str, folder: Path) -> list[Path]:
    """Write a Flower app whose server has a method, and return its files.

    Raises
    ------
    ConfigError
        If there is no such method, or the method needs another client than the app's.
    RunError
        If one of the files exists, or cannot be written.
    """
    return _write(folder, app_texts(method))


def app_texts(method: str) -> dict[str, str]:
    """Return the files of a Flower app whose server has a method, by name."""
    registered = find_method(method)
    if not _serves(registered):
        raise ConfigError(
            f"method {method} needs a client of fedsuite's: `fedsuite init {method}` "
            f"writes an experiment; --app has {', '.join(app_methods())}"
        )
    strategy = load_strategy(registered)
    name, takes = strategy.__name__, signature(strategy).parameters
    keywords = [f"{key}={value}" for key, value in _APP_SAYS.items() if key in takes]
    project = _template("pyproject.toml").replace(_APP_STRATEGY, name)
    # The first line is about the example.
    _, _, project = project.partition("\n")
    server = _SERVER.format(strategy=name, keywords=", ".join(keywords))
    return {
        "pyproject.toml": project,
        "client_app.py": _template("client_app.py"),
        "server_app.py": server,
    }


def app_methods() -> list[str]:
    """Return the methods that the app's client serves."""
    return [name for name, method in METHODS.items() if _serves(method)]


def _serves(method: Method) -> bool:
    strategy = load_strategy(method)
    needs = strategy.NEEDS_OF_CLIENT
    of_model = {key.name for key in shared_groups()["model"]}
    return (
        not needs.client
        and all(m.name in _APP_REPORTS or m.keyword in _APP_SAYS for m in needs.metrics)
        and strategy.trains_one_model()
        and not of_model & set(strategy.FIXED)
    )


def _template(name: str) -> str:
    folder = simulations() / "plug_in"
    # A wheel has no module names except the package's.
    path = folder / name if (folder / name).exists() else folder / f"{name}.txt"
    return path.read_text("utf-8")


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Write new files, all or none."""
    paths = {folder / name: text for name, text in texts.items()}
    for path in paths:
        if path.exists():
            raise RunError(f"{path} exists already: move it, or go to another folder")
    for path, text in paths.items():
        atomic_write(path, text.encode())
    return list(paths)


def _explained(keys: Sequence[Key], values: Mapping[str, Value]) -> list[str]:
    lines = []
    for key in keys:
        words = f"{key.help} ({key.allowed()})"
        lines += [f"# {line}\n" for line in textwrap.wrap(words, WIDTH - 2)]
        lines.append(_line(key.name, values[key.name]))
    return lines


def _line(name: str, value: Value) -> str:
    return f"{name} = {toml_text(value)}\n"
