"""Whole apps of strangers, by the number of changed lines that the how-to page states."""

import dataclasses
import random
import re
import tomllib
from pathlib import Path

import pytest
import torch

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.registry import METHODS as REGISTRY
from fedsuite.core.registry import Method
from fedsuite.strategies import load_strategy
from tests.strangers.apps import (
    APPS,
    LORA,
    NUMPY,
    SKLEARN,
    XGBOOST,
    StrangerApp,
    changes_for,
    run_here,
    swap,
    tables,
    write_changed,
)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "flower_apps.md"
METHODS = ("FedEBA", "PracFedEBAPlus")


def stated_lines() -> list[int]:
    """Return the lines that the page counts, without and with an argument more."""
    text = " ".join(PAGE.read_text().split())
    usual = re.search(r"\*\*One line\*\* of your app changes, the import", text)
    second = re.search(r"your client does not report needs a \*\*second line\*\*", text)
    assert usual and second
    return [1, 2]


def run_changed(
    app: StrangerApp, folder: Path, *changes: tuple[str, str], num_nodes: int = 3
) -> str:
    """Run a changed app with fixed random numbers and return its log."""
    write_changed(app, folder, *changes)
    torch.manual_seed(0)
    return run_here(app, folder, num_nodes)


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_fedavg_in_a_strangers_app_is_flowers(
    app: StrangerApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients take part, in one order: Flower's own FedAvg shuffles them."""
    monkeypatch.setattr(random, "sample", lambda population, k: population[:k])
    app.skip_unless_installed()
    theirs = run_changed(app, tmp_path / "stock", num_nodes=2)
    log = run_changed(app, tmp_path / "ours", swap("FedAvg"), num_nodes=2)
    own_lines = "Communicated so far|Learning rate halved"
    assert re.findall(f"(?:{own_lines}).*", log) == re.findall(f"(?:{own_lines}).*", theirs)
    stock, ours = tables(theirs), tables(log)
    for phase, rounds in stock.items():
        assert list(ours[phase]) == list(rounds)
        for number, metrics in rounds.items():
            assert list(ours[phase][number]) == list(metrics)
            for name, value in metrics.items():
                if not value.startswith("["):
                    found = float(ours[phase][number][name])
                    assert found == pytest.approx(float(value), rel=2e-3), (phase, name)


@pytest.mark.parametrize("strategy", METHODS)
@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_a_method_in_a_strangers_app(
    app: StrangerApp, strategy: str, tmp_path: Path
) -> None:
    app.skip_unless_installed()
    changes = changes_for(app, strategy)
    count = write_changed(app, tmp_path / "counted", *changes)
    assert count == stated_lines()[len(changes) - 1]
    log = run_changed(app, tmp_path / "run", *changes)
    losses = [float(metrics["loss"]) for metrics in tables(log)["server"].values()]
    assert len(losses) == 3
    assert losses[2] < losses[1] < losses[0]
    assert "not used" not in log


UNFOLLOWED = (
    r"round 1: \w+: none of \d+ clients says that it followed proximal-mu = 0\.01, without "
    r"which this is another method: train with fedsuite\.clients\.FedProxClient"
)
_METRICS = '    metrics = {"train_loss": loss, "num-examples": len(labels)'
_STEPS = "    for _ in range(steps):\n"
_PULLED = """\
    start = {name: array.copy() for name, array in model.items()}
    for _ in range(steps):
        for name in model:
            model[name] -= learning_rate * mu * (model[name] - start[name])
"""
PULL = (
    (
        'context.run_config["learning-rate"])',
        'context.run_config["learning-rate"], msg.content["config"]["proximal-mu"])',
    ),
    (
        _METRICS,
        f'    mu = msg.content["config"]["proximal-mu"]\n{_METRICS}, "proximal-mu": mu',
    ),
    ("learning_rate, steps=10):", "learning_rate, mu=0.0, steps=10):"),
    (_STEPS, _PULLED),
)
"""The client's part of FedProx, in the NumPy app."""


@pytest.mark.parametrize("app", APPS, ids=lambda app: app.name)
def test_fedprox_alone_is_fedavg_and_says_so(app: StrangerApp, tmp_path: Path) -> None:
    """One changed line runs, as with Flower's FedProx, and does not count as FedProx."""
    app.skip_unless_installed()
    log = run_changed(app, tmp_path / "run", *changes_for(app, "FedProx"))
    assert len(re.findall(UNFOLLOWED, log)) == 1
    stock = run_changed(app, tmp_path / "stock", *changes_for(app, "FedAvg"))
    assert tables(log) == tables(stock)


def test_fedprox_works_where_the_apps_client_does_its_part(tmp_path: Path) -> None:
    log = run_changed(NUMPY, tmp_path / "run", *changes_for(NUMPY, "FedProx"), *PULL)
    assert "followed" not in log and "not used" not in log
    losses = [float(metrics["loss"]) for metrics in tables(log)["server"].values()]
    assert losses[2] < losses[1] < losses[0]
    stock = run_changed(NUMPY, tmp_path / "stock", *changes_for(NUMPY, "FedAvg"))
    assert tables(log)["server"] != tables(stock)["server"]
    assert list(tables(log)["train"][1]) == list(tables(stock)["train"][1])


@pytest.mark.parametrize("method", REGISTRY.values(), ids=REGISTRY)
def test_every_method_runs_or_says_what_it_needs(method: Method, tmp_path: Path) -> None:
    """Over an app that sends back a model, ``train_loss``, and nothing else."""
    strategy = load_strategy(method)
    name, needs = strategy.__name__, strategy.NEEDS_OF_CLIENT
    try:
        log = run_changed(NUMPY, tmp_path / "app", *changes_for(NUMPY, name))
    except TypeError as error:
        assert re.search(rf"^{name} needs the keyword \w+: \w", str(error))
        assert needs.client
        return
    except FedsuiteError as error:
        assert str(error).startswith(f"round 1: {name}: ")
        assert needs.client and needs.client in str(error)
        assert "\n" not in str(error)
        return
    assert f"Needed of clients: {needs.words}" in log
    assert not needs.client or re.search(UNFOLLOWED, log)
    losses = [float(metrics["loss"]) for metrics in tables(log)["server"].values()]
    assert losses[2] < losses[1] < losses[0]


SECOND_LINES = [
    (app, method.strategy.rpartition(".")[2])
    for app in (NUMPY, SKLEARN)
    for method in REGISTRY.values()
    if len(changes_for(app, method.strategy.rpartition(".")[2])) == 2
]


@pytest.mark.parametrize(
    ("app", "name"), SECOND_LINES, ids=[f"{app.name}-{name}" for app, name in SECOND_LINES]
)
def test_what_is_missing_is_named_where_the_second_line_is_left_out(
    app: StrangerApp, name: str, tmp_path: Path
) -> None:
    one, second = changes_for(app, name)
    with pytest.raises(FedsuiteError, match=f"round 1: {name}: metric '") as caught:
        run_changed(app, tmp_path / "app", one)
    keywords = re.findall(r", (\w+)=", second[1])
    for keyword in ("loss_key", "loss_before_key", "local_steps", "learning_rate"):
        assert (f" as {keyword}" in str(caught.value)) == (keyword in keywords)
    assert "\n" not in str(caught.value)


def test_a_missing_extra_skips_and_says_which() -> None:
    lacking = dataclasses.replace(LORA, needs=("no_such_module",))
    with pytest.raises(pytest.skip.Exception, match=r"no_such_module.*\[dev,strangers\]"):
        lacking.skip_unless_installed()


def test_the_full_test_target_has_the_extra() -> None:
    assert '--editable ".[dev,strangers]"' in (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["strangers"]
    names = {re.split("[>=<]", requirement)[0] for requirement in extra}
    modules = {name.removesuffix("-cpu") for name in names}
    assert modules == {*LORA.needs, *XGBOOST.needs}
    for constraints in (ROOT / "constraints").glob("*.txt"):
        pinned = {line.partition("==")[0] for line in constraints.read_text().splitlines()}
        assert names <= pinned, constraints.name
