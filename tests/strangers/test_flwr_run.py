"""The strangers' apps, changed as their page says, under ``flwr run`` and Ray."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fedsuite.core.errors import RunError
from fedsuite.engines.processes import World
from tests.strangers.apps import (
    APPS,
    LOOP,
    LORA,
    METRICS,
    NUMPY,
    PYTORCH,
    SKLEARN,
    Flowers,
    StrangerApp,
    changes_for,
    swap,
    tables,
    write_changed,
)

STRATEGIES = ("FedAvg", "FedEBA", "PracFedEBAPlus", "FedProx")
SAMPLE = (
    (PYTORCH, "PracFedEBAPlus"),
    (SKLEARN, "FedEBA"),
    (NUMPY, "FedProx"),
    (METRICS, "FedAvg"),
    (LOOP, "PracFedEBAPlus"),
    (LORA, "FedEBA"),
)
"""Each app and each strategy; every pair runs at night."""


def marks(app: StrangerApp, strategy: str) -> list[pytest.MarkDecorator]:
    """Return when a pair of app and strategy runs."""
    if (app, strategy) not in SAMPLE:
        return [pytest.mark.nightly]
    smoke = (app, strategy) == (NUMPY, "FedProx")
    return [pytest.mark.slow, *([pytest.mark.smoke] if smoke else [])]


Submit = Callable[[Path], str]


@pytest.fixture(scope="module")
def submit() -> Iterator[Submit]:
    """Give a function that runs an app on one SuperLink and returns the run's log."""
    with World("") as world:
        yield partial(Flowers(world).run, nodes=2)


@pytest.mark.parametrize(
    ("app", "strategy"),
    [
        pytest.param(
            app,
            strategy,
            marks=marks(app, strategy),
            id=f"{app.name}-{strategy}",
        )
        for app in APPS
        for strategy in STRATEGIES
    ],
)
def test_flwr_run_of_a_strangers_app(
    app: StrangerApp, strategy: str, submit: Submit, tmp_path: Path
) -> None:
    app.skip_unless_installed()
    write_changed(app, tmp_path / app.name, *changes_for(app, strategy))
    log = submit(tmp_path / app.name)
    name = "CustomFedAvg" if app is LOOP else strategy
    for line in (
        f"Starting {'FlowerTuneLora' if app is LORA else name} strategy:",
        "[ROUND 1/2]",
        "[ROUND 2/2]",
        "aggregate_train: Received 2 results and 0 failures",
        "Aggregated MetricRecord: {",
    ):
        assert line in log, log
    assert ("says that it followed" in log) == (strategy == "FedProx")
    found = tables(log)
    assert sorted(found["train"]) == [1, 2]
    losses = [float(metrics["loss"]) for metrics in found["server"].values()]
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.slow
def test_a_method_that_the_app_cannot_serve_ends_the_run_in_one_line(
    submit: Submit, tmp_path: Path
) -> None:
    write_changed(NUMPY, tmp_path / NUMPY.name, swap("Scaffold"))
    with pytest.raises(RunError, match="control-change") as caught:
        submit(tmp_path / NUMPY.name)
    assert "round 1: Scaffold: " in str(caught.value)
    assert "fedsuite.clients.ScaffoldClient" in str(caught.value)
    assert "\n" not in str(caught.value)
