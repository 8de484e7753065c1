"""The example app, whose client knows nothing of fedsuite, and legacy NumPyClient apps."""

import logging
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import Arrays
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.fedeba_plus import PracFedEBAPlus
from fedsuite.workarounds.identity import flower_identity

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "simulations" / "plug_in"
NUM_NODES = 5
SWAPPED = r"( +strategy = )PracFedEBAPlus\(.*\)\n"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the app's run config, with its modules importable as Flower has them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    app = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "server_app:app",
        "clientapp": "client_app:app",
    }
    yield dict(app["config"])
    sys.modules.pop("client_app", None)


def run_app(source: str, config: dict[str, Any]) -> None:
    """Run the app in this process, with this source of its server."""
    server, client = ModuleType("server_app"), __import__("client_app")
    exec(compile(source, "server_app.py", "exec"), server.__dict__)
    assert isinstance(server.app, ServerApp)
    context = Context(1, 1, {}, RecordDict(), config)
    with flower_identity():
        server.app(LocalGrid(client.app, NUM_NODES, config), context)


def accuracies(printed: str) -> list[float]:
    return [float(x) for x in re.findall(r"round \d+: accuracy ([\d.]+)", printed)]


@pytest.mark.slow
def test_the_example_app_learns_with_prac_fedeba_plus(
    config: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        run_app((FOLDER / "server_app.py").read_text(), config)
    found = accuracies(capsys.readouterr().out)
    assert len(found) == config["num-server-rounds"]
    assert min(found[-5:]) > 0.75 > 0.4 > found[0]
    # Both losses were found, and no reply was refused.
    assert not caplog.records


def test_one_line_of_the_example_app_is_the_whole_swap(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    source = (FOLDER / "server_app.py").read_text()
    stock = "__import__('flwr.serverapp.strategy', fromlist=['FedAvg']).FedAvg()"
    swapped, count = re.subn(SWAPPED, rf"\g<1>{stock}\n", source)
    assert count == 1
    run_app(swapped, {**config, "num-server-rounds": 2})
    assert len(accuracies(capsys.readouterr().out)) == 2
    assert "fedsuite" not in (FOLDER / "client_app.py").read_text().partition('"""\n')[2]


# ---- a legacy app: unchanged NumPyClients


class Legacy(NumPyClient):
    """Client of F(x) = a (x - c)^2: two exact steps of 0.05, names of its own."""

    def __init__(self, factor: float, centre: float) -> None:
        self.factor, self.centre = factor, centre

    def loss(self, x: np.ndarray) -> float:
        return float(self.factor * (x[0] - self.centre) ** 2)

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        x = parameters[0].copy()
        before = self.loss(x)
        for _ in range(2):
            x -= 0.05 * 2 * self.factor * (x - self.centre)
        return [x], 1, {"loss_was": before, "train_loss": self.loss(x)}


def legacy_round(strategy: Any) -> float:
    clients = [Legacy(2.0, 2.0), Legacy(0.5, -4.0)]
    app = ClientApp(
        client_fn=lambda context: clients[
            int(context.node_config["partition-id"])
        ].to_client()
    )
    initial: Arrays = {"x": np.array([-1.0])}
    with flower_identity():
        result = strategy.start(LocalGrid(app, 2), to_record(initial), 1)
    return float(to_arrays(result.arrays)["x"][0])


@pytest.mark.parametrize(
    ("strategy_class", "changes", "expected"),
    [
        (FedEBA, {}, -0.36287180),
        (PracFedEBAPlus, {"alpha": 0.5, "theta": 15.0}, -0.18465137),
        (PracFedEBAPlus, {"alpha": 0.5, "theta": 60.0}, -0.58299840),
    ],
)
def test_golden_rounds_of_a_legacy_app(
    strategy_class: Any, changes: dict[str, Any], expected: float
) -> None:
    if strategy_class is PracFedEBAPlus:
        changes = {**changes, "loss_before_key": "loss_was", "local_steps": 2}
    strategy = strategy_class.of_paper(
        wire="numpy",
        temperature=5.0,
        loss_key="train_loss",
        fraction_evaluate=0.0,
        max_failed_rounds=1,
        **changes,
    )
    assert legacy_round(strategy) == pytest.approx(expected, abs=1e-8)
